"""Models from a hub: what may be asked for, what is done with what is there, how it is put in place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.model_files_folder import save_record
from ansible.module_utils.model_files_hub import Record, Wanted, check_wanted, job_digest, load_record
from ansible.module_utils.model_files_look import look
from ansible.module_utils.model_files_place import place
from ansible.module_utils.model_files_places import Places
from ansible.module_utils.model_files_progress import progress
from ansible.module_utils.model_files_rules import PackageError

COMMIT = "c" * 40


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


FILES = {"config.json": sha("{}"), "sub/model.safetensors": sha("weights")}


def wanted(**changes: str) -> Wanted:
    return Wanted(**{"repository": "owner/m", "revision": "", "name": "m", "endpoint": "", **changes})


def arrive(root: Path, **contents: str) -> dict[str, Any]:
    """What a download leaves, and its outcome."""
    files = {"config.json": "{}", "sub/model.safetensors": "weights", **contents}
    folder = Places(root, "m").arriving
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return {
        "commit": COMMIT,
        "files": {name: sha(content) for name, content in files.items()},
        "bytes": 9,
        "set_aside": [],
    }


def asked(root: Path, outcome: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "root": str(root),
        "repository": "owner/m",
        "revision": "main",
        "name": "m",
        "endpoint": "",
        "outcome": outcome,
        "weights": {"verdict": "verified"},
        **changes,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one model `m` that was pulled."""
    place(asked(tmp_path, arrive(tmp_path)))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"repository": ""}, "Say which model"),
        ({"repository": "../etc"}, "model_files_repository"),
        ({"repository": "a/b/c"}, "model_files_repository"),
        ({"repository": "a/b;c"}, "model_files_repository"),
        ({"repository": "a/" + "b" * 100}, "model_files_repository"),
        ({"name": "../m"}, "model_files_name"),
        ({"name": ".hidden"}, "model_files_name"),
        ({"name": "a/b"}, "model_files_name"),
        ({"name": ""}, "model_files_name"),
        ({"revision": "a b"}, "model_files_revision"),
        ({"revision": "../main"}, "model_files_revision"),
        ({"endpoint": "hub.example"}, "model_files_hub_endpoint"),
        ({"endpoint": "https://me:secret@hub.example"}, "model_files_hub_endpoint"),
    ],
)
def test_a_model_asked_for_wrongly_is_one_sentence(changes: dict[str, str], word: str) -> None:
    with pytest.raises(PackageError, match=word):
        check_wanted(wanted(**changes))


@pytest.mark.parametrize(
    "changes",
    [{}, {"revision": "refs/pr/3"}, {"endpoint": "http://127.0.0.1:80/hub"}, {"repository": "gpt2"}],
)
def test_a_model_asked_for_rightly_is_taken(changes: dict[str, str]) -> None:
    check_wanted(wanted(**changes))


def test_a_model_that_was_pulled_is_left_alone(root: Path) -> None:
    for revision in ("", "main", COMMIT):
        found = look(root, wanted(revision=revision), rehash=False, check_mode=False)
        assert (found.action, found.changes) == ("nothing", ())
    assert not (root / ".pulling").exists()
    record = load_record(Places(root, "m").record)
    assert record == Record("owner/m", "main", COMMIT, "", FILES)


def test_what_is_missing_or_altered_is_repaired_out_of_the_same_commit(root: Path) -> None:
    (root / "m/sub/model.safetensors").write_text("rotten!")
    (root / "m/config.json").unlink()
    found = look(root, wanted(), rehash=False, check_mode=False)
    assert (found.action, found.revision) == ("repair", COMMIT)
    assert found.only == ("config.json", "sub/model.safetensors")

    kept, message = place(asked(root, arrive(root), weights=None))
    assert (root / "m/sub/model.safetensors").read_text() == "weights"
    (aside,) = (Path(each) for each in kept)
    assert aside.parent == root / ".bad/m/sub" and aside.read_text() == "rotten!"
    assert message.startswith("model m: 2 files replaced")
    assert look(root, wanted(), rehash=True, check_mode=False).action == "nothing"


def test_another_file_under_the_same_commit_is_refused(root: Path) -> None:
    outcome = arrive(root, **{"config.json": "[]"})
    with pytest.raises(PackageError, match=r"another config\.json .* nothing was replaced"):
        place(asked(root, outcome))
    assert (root / "m/config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"repository": "other/m"}, "holds owner/m, not other/m"), ({"revision": "v2"}, "not at 'v2'")],
)
def test_another_model_in_its_place_is_refused(root: Path, changes: dict[str, str], word: str) -> None:
    with pytest.raises(PackageError, match=word):
        look(root, wanted(**changes), rehash=False, check_mode=False)


def test_a_folder_that_a_person_brought_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(PackageError, match="was not put there by"):
        look(tmp_path, wanted(), rehash=False, check_mode=False)


def test_a_model_published_with_wrong_weights_never_gets_its_name(tmp_path: Path) -> None:
    verdict = {"verdict": "failed", "evidence": ["there is a NaN"]}
    with pytest.raises(PackageError, match=r"there is a NaN.*It is kept in"):
        place(asked(tmp_path, arrive(tmp_path), weights=verdict))
    assert [path.name for path in tmp_path.iterdir()] == [".bad"]


def test_what_arrived_damaged_is_kept_beside_the_models(tmp_path: Path) -> None:
    outcome = arrive(tmp_path)
    damaged = Places(tmp_path, "m").damaged / "sub/model.safetensors.bad-1"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("wrong")
    kept, _ = place(asked(tmp_path, outcome))
    assert kept == [str(tmp_path / ".bad/m/sub/model.safetensors.bad-1")]
    assert Path(kept[0]).read_text() == "wrong"


def test_engines_of_other_users_can_read_the_model(root: Path) -> None:
    assert (root / "m/sub").stat().st_mode & 0o777 == 0o755
    assert (root / "m/sub/model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_record_that_is_broken_counts_as_none(root: Path) -> None:
    record = Places(root, "m").record
    record.write_text(json.dumps({"repository": "owner/m"}))
    assert load_record(record) is None
    save_record(root / ".verified/m.json", root / "m", FILES)
    with pytest.raises(PackageError, match="was not put there by"):
        look(root, wanted(), rehash=False, check_mode=False)


def test_how_far_it_is_is_said_in_numbers_with_their_units() -> None:
    assert progress(None, 1.0, 0) == "asking the hub"
    status = {"phase": "downloading", "done_bytes": 3_000_000_000, "total_bytes": 9_000_000_000}
    assert progress(status, 10.0, 1_000_000_000) == "downloading: 3.00 of 9.00 GB, 200.0 MB/s, 30 s left"
    assert progress(status, 0.0, 3_000_000_000) == "downloading: 3.00 of 9.00 GB"
    assert progress({**status, "phase": "checking"}, 10.0, 0) == "checking: 3.00 of 9.00 GB"


def test_the_token_is_no_part_of_what_tells_one_pull_from_another() -> None:
    assert job_digest({"repository": "a", "token": "x"}) == job_digest({"repository": "a"})
    assert job_digest({"repository": "a"}) != job_digest({"repository": "b"})
