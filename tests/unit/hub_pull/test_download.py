"""Downloads with the hub's real client: whole, broken off, damaged, refused."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from gpu_diag.weights.hub import recorded_checksum
from hub_server import COMMIT, Hub, Repository, serving

from tests.unit.hub_pull.conftest import FILES, NAME, PULLED, WEIGHTS, Puller

FIRST, SECOND = sorted(WEIGHTS)
LARGE = "model.safetensors"


def ranges(hub: Hub, name: str) -> list[str]:
    """The ranges in which a file was asked for."""
    return [each.range for each in hub.asked if each.method == "GET" and each.path.endswith(name)]


def test_a_model_arrives_pinned_to_its_commit_with_the_checksum_of_every_file(puller: Puller) -> None:
    outcome = puller()
    assert outcome["ok"] and outcome["commit"] == COMMIT and outcome["set_aside"] == []
    assert puller.arrived == {name: FILES[name] for name in PULLED}
    assert outcome["files"] == {name: hashlib.sha256(FILES[name]).hexdigest() for name in PULLED}
    assert outcome["bytes"] == sum(len(FILES[name]) for name in PULLED)
    # What the weights probe goes by is what this client leaves beside the files.
    recorded = recorded_checksum(puller.folder / "pull/model", FIRST)
    assert recorded is not None and recorded.digest == outcome["files"][FIRST]


def test_a_second_run_fetches_nothing(puller: Puller, hub: Hub) -> None:
    puller()
    hub.asked.clear()
    assert puller()["ok"]
    assert [each for each in hub.asked if each.method == "GET" and "/resolve/" in each.path] == []


def with_large(hub: Hub) -> Repository:
    """A repository of one shard that the client takes in several bites (of 10 MiB)."""
    repository = hub.repositories[NAME] = Repository({LARGE: os.urandom(25 << 20), "config.json": b"{}"})
    return repository


def test_a_connection_cut_in_mid_file_is_taken_up_where_it_broke(puller: Puller, hub: Hub) -> None:
    repository = with_large(hub)
    repository.cut_after_bytes[LARGE], repository.cuts[LARGE] = 11 << 20, 2
    assert puller()["ok"]
    assert ranges(hub, LARGE) == ["", f"bytes={10 << 20}-", f"bytes={20 << 20}-"]
    assert puller.arrived == repository.files


def test_a_hub_that_hangs_is_given_up_in_bounded_time_and_the_next_run_goes_on(
    puller: Puller, hub: Hub
) -> None:
    repository = with_large(hub)
    repository.hang_after_bytes[LARGE] = 21 << 20
    sentence = puller.refused(stall_seconds=3)
    assert sentence.startswith(f"No byte of {NAME} has arrived for 3 s")
    repository.hang_after_bytes.clear()
    hub.asked.clear()
    assert puller()["ok"]
    (asked,) = ranges(hub, LARGE)
    assert asked in (f"bytes={10 << 20}-", f"bytes={20 << 20}-")
    assert puller.arrived == repository.files


def test_a_damaged_shard_is_kept_aside_and_fetched_anew(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME].damaged[SECOND] = 1
    outcome = puller()
    assert outcome["ok"] and [each["file"] for each in outcome["set_aside"]] == [SECOND]
    assert puller.arrived == {name: FILES[name] for name in PULLED}
    (kept,) = (puller.folder / "pull/bad").iterdir()
    assert kept.name == outcome["set_aside"][0]["kept"] and kept.name.startswith(f"{SECOND}.bad-2")
    assert kept.read_bytes()[:-1] == FILES[SECOND][:-1] and kept.read_bytes() != FILES[SECOND]
    assert len(ranges(hub, FIRST)) == 1


def test_a_small_file_is_proven_too(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME].damaged["config.json"] = 1
    assert [each["file"] for each in puller()["set_aside"]] == ["config.json"]
    assert puller.arrived["config.json"] == b"{}"


def test_what_arrives_damaged_twice_is_said_and_both_copies_are_kept(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME].damaged[FIRST] = 9
    sentence = puller.refused()
    assert sentence.startswith(f"The file {FIRST} of {NAME} arrived damaged twice: it has the sha256 ")
    assert "/models/.pulling/small/bad" in sentence
    assert len(list((puller.folder / "pull/bad").iterdir())) == 2
    assert FIRST not in puller.arrived


def test_a_part_of_other_content_is_noticed(puller: Puller, hub: Hub) -> None:
    part = puller.folder / f"pull/parts/{hashlib.sha256(FILES[FIRST]).hexdigest()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(os.urandom(1000))
    outcome = puller()
    assert ranges(hub, FIRST) == ["bytes=1000-", ""]
    assert outcome["ok"] and [each["file"] for each in outcome["set_aside"]] == [FIRST]
    assert puller.arrived[FIRST] == FILES[FIRST] and not part.exists()


def test_a_token_does_not_follow_to_where_the_hub_keeps_its_files(puller: Puller, hub: Hub) -> None:
    with serving("127.0.0.2") as elsewhere:
        elsewhere.repositories[NAME] = Repository(dict(FILES))
        hub.repositories[NAME] = Repository(
            dict(FILES), token="hf_secret", moved_to=f"http://127.0.0.2:{elsewhere.port}"
        )
        assert puller(token="hf_secret")["ok"]
        assert {each.authorization for each in elsewhere.asked} == {""}
        assert ranges(elsewhere, FIRST) == [""] and ranges(hub, FIRST) == []


def test_only_the_files_that_are_asked_for_are_fetched(puller: Puller) -> None:
    assert set(puller(only=[SECOND], revision=COMMIT)["files"]) == {SECOND}
    assert list(puller.arrived) == [SECOND]


def test_a_token_opens_a_gated_repository_and_shows_nowhere(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME] = Repository(dict(FILES), token="hf_secret", gated=True)
    assert "is gated: ask for access there" in puller.refused()
    assert "was not given access" in puller.refused(token="hf_other")
    assert puller(token="hf_secret")["ok"]
    left = [path for path in puller.folder.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]
    assert left == [] and "hf_secret" not in "".join(puller.outputs)
    assert {each.authorization for each in hub.asked if "hf_" not in each.authorization} == {""}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"repository": "owner/none"}, "There is no repository owner/none at http://127.0.0.1:"),
        ({"revision": "v9"}, "has no revision 'v9'; correct model_files_revision."),
        ({"endpoint": "http://127.0.0.1:9"}, "can't be reached"),
        ({"endpoint": "http://no-such-host.invalid"}, "can't be reached"),
        ({"only": ["gone.safetensors"]}, "The hub no longer lists gone.safetensors"),
    ],
)
def test_what_can_not_be_had_is_one_sentence(puller: Puller, changes: dict[str, Any], expected: str) -> None:
    sentence = puller.refused(**changes)
    assert expected in sentence and "\n" not in sentence and "Traceback" not in puller.outputs[0]
    assert puller.arrived == {}


def test_a_server_that_is_no_hub_is_named(puller: Puller, hub: Hub) -> None:
    hub.is_a_hub = False
    assert "does not answer as a model hub does" in puller.refused()


def test_no_room_is_said_before_anything_is_downloaded(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME].claimed_bytes[FIRST] = 40_000_000_000_000
    sentence = puller.refused(xet=True)
    assert "The model takes 40000.00 GB" in sentence and "/models/.pulling/small" in sentence
    assert puller.arrived == {} and not ranges(hub, "safetensors")


@pytest.mark.parametrize("path", ["../../outside", "/outside", "a/../../outside", ".cache/x", "a\\b", "a\nb"])
def test_a_path_trick_of_the_hub_writes_nothing(puller: Puller, hub: Hub, path: str) -> None:
    hub.repositories[NAME].files[path] = b"x"
    assert "which is no path inside a model's folder" in puller.refused()
    assert puller.arrived == {} and not list(puller.folder.parent.rglob("outside"))


def test_a_repository_without_weights_is_refused(puller: Puller, hub: Hub) -> None:
    hub.repositories[NAME] = Repository({"README.md": b"hello"})
    assert f"The repository {NAME} holds no weights" in puller.refused()


def test_what_another_commit_left_is_removed(puller: Puller) -> None:
    puller()
    stranger = Path(puller.folder / "pull/model/model-00003-of-00003.safetensors")
    stranger.write_bytes(b"of another commit")
    assert puller()["ok"] and not stranger.exists()
