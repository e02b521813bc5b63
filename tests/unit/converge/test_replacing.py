"""In which order services are replaced, what the router knows meanwhile, and how one goes back."""

from __future__ import annotations

import json
from typing import Any

import frontdoor_replace as replacing
import pytest
from hypothesis import given
from hypothesis import strategies as st

NAMES = ["a", "b", "c", "d", "e"]


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": f"{name}-model", "aliases": [], "base_url": f"http://{name}:8000", **more}


def registry(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, "instance": "test", "services": list(entries)}


WAVES = st.permutations(NAMES).flatmap(
    lambda names: st.lists(st.integers(0, len(names)), max_size=3).map(
        lambda cuts: [
            names[start:end]
            for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(names)], strict=True)
        ]
    )
)


@given(st.sets(st.sampled_from(NAMES)), WAVES)
def test_each_service_has_one_turn_and_only_with_those_of_its_wave(
    services: set[str], waves: list[list[str]]
) -> None:
    turns = replacing.turns(sorted(services), waves)
    assert sorted(name for turn in turns for name in turn) == sorted(services)
    wave_of = {name: number for number, wave in enumerate(waves) for name in wave}
    assert all(len({wave_of[name] for name in turn}) == 1 for turn in turns)
    order = [wave_of[turn[0]] for turn in turns]
    assert order == sorted(order)


def test_without_waves_all_come_up_side_by_side() -> None:
    assert replacing.turns(["b", "a"], []) == (("b", "a"),)
    assert replacing.turns([], []) == ()


def test_what_no_wave_names_goes_with_the_first() -> None:
    assert replacing.turns(["a", "x", "b"], [["a"], ["b"]]) == (("x", "a"), ("b",))


@pytest.mark.parametrize(
    ("new_image", "expected"),
    [
        (set(), (("a", "b"), ("c",))),
        ({"b"}, (("a", "b"), ("c",))),
        ({"b", "c"}, (("b",), ("a",), ("c",))),
        ({"a", "b", "c"}, (("a",), ("b",), ("c",))),
    ],
)
def test_a_new_image_is_tried_on_one_service_first(
    new_image: set[str], expected: tuple[tuple[str, ...], ...]
) -> None:
    assert replacing.turns(["a", "b", "c"], [["a", "b"], ["c"]], new_image) == expected


def test_what_runs_is_left_alone_once_another_failed() -> None:
    assert replacing.may_begin("text", runs=True, failed=[]) is None
    assert replacing.may_begin("text", runs=False, failed=["ocr"]) is None
    words = replacing.may_begin("text", runs=True, failed=["ocr", "embed"])
    assert words is not None and words.startswith("goes on as it is, since embed and ocr failed")


def test_the_router_knows_what_is_replaced_as_it_was_and_the_rest_as_planned() -> None:
    known = registry(entry("text", definition="old"), entry("embed", definition="old"), entry("gone"))
    target = registry(entry("text", definition="new"), entry("embed", definition="new"), entry("ocr"))
    entries = replacing.entries_at_start(known, target, {"text", "ocr"})
    assert {name: one.get("definition") for name, one in entries.items()} == {
        "text": "old",
        "embed": "new",
        "ocr": None,
    }
    assert replacing.leaving(known, target) == ["gone"]
    names = [one["name"] for one in json.loads(replacing.registry_text(target, entries))["services"]]
    assert names == ["text", "embed", "ocr"]


@pytest.mark.parametrize(
    "taken", [{"aliases": ["SMOL"]}, {"base_url": "http://text:8000"}, {"model": "text-MODEL"}]
)
def test_no_name_or_address_ever_means_two_services(taken: dict[str, Any]) -> None:
    known = registry(entry("text", aliases=["smol"]))
    target = registry(entry("text", model="t", base_url="http://t:8000"), entry("ocr", **taken))
    assert replacing.entries_at_start(known, target, {"text"})["text"]["model"] == "t"


@pytest.mark.parametrize(
    "known", [None, [], {}, {"schema_version": 2, "services": [entry("text")]}, registry({})]
)
def test_a_registry_that_cannot_be_understood_counts_for_nothing(known: Any) -> None:
    target = registry(entry("text"))
    assert replacing.entries_at_start(known, target, {"text"}) == {"text": entry("text")}
    assert replacing.leaving(known, target) == []
    assert replacing.entry_of(known, "text") is None


def test_a_whole_registry_is_written_as_the_plan_writes_it() -> None:
    target = registry(entry("text"), entry("embed"))
    entries = {name: replacing.entry_of(target, name) or {} for name in ("text", "embed")}
    assert replacing.registry_text(target, entries) == json.dumps(target, indent=2) + "\n"


@pytest.mark.parametrize(
    ("word", "proven"),
    [
        ("recorded", True),
        ("matched", True),
        ("sensible, and not recorded, since the evidence about its weights does not vouch for it", True),
        ("not possible: the canary's scores are all equal", False),
        ("none is recorded, since the engine isn't fresh", False),
        ("", False),
    ],
)
def test_only_a_canary_proves(word: str, proven: bool) -> None:
    assert (replacing.proof_problem({"canary": word}) is None) is proven


def test_what_helps_is_said_by_its_case() -> None:
    stale = {"service": "text", "canary": "none is recorded, since the engine isn't fresh"}
    assert "`vllmctl restart text`, then run" in str(replacing.proof_problem(stale))
    refused = {"service": "text", "canary": "not possible: /score answered 404"}
    words = str(replacing.proof_problem(refused))
    assert "(not possible: /score answered 404)" in words
    assert "vllm_service_services.text.task" in words and "`vllmctl prove text`" in words


def compose(**services: Any) -> dict[str, Any]:
    return {"services": services, "networks": {name: {"name": f"net-{name}"} for name in services}}


def previous(document: dict[str, Any]) -> replacing.Previous:
    return replacing.Previous("release 3", document, {})


def test_why_there_is_no_way_back() -> None:
    now = compose(text={"image": "new"})
    assert replacing.no_way_back("text", now, previous(compose(text={"image": "old"}))) is None
    assert "no earlier release" in str(replacing.no_way_back("text", now, None))
    assert "has no such service" in str(replacing.no_way_back("text", now, previous(compose())))
    assert "the same in release 3" in str(replacing.no_way_back("text", now, previous(now)))


def test_one_service_goes_back_with_its_network_and_no_other() -> None:
    now = compose(text={"image": "new", "networks": {"text": {}}}, embed={"image": "new"})
    then = compose(text={"image": "old", "networks": {"text": {}}}, embed={"image": "old"})
    then["networks"]["text"] = {"name": "net-text", "internal": True}
    mixed = replacing.with_service_of(now, then, "text")
    assert mixed["services"] == {"text": then["services"]["text"], "embed": now["services"]["embed"]}
    assert mixed["networks"] == {"text": then["networks"]["text"], "embed": now["networks"]["embed"]}
    assert now["services"]["text"]["image"] == "new"
    lines = replacing.compose_text(mixed, "Why.").splitlines(keepends=True)
    assert lines[0] == "# Why.\n" and json.loads("".join(lines[1:])) == mixed


def test_environment_files_in_both_forms() -> None:
    assert replacing.environment_files({"env_file": ["a.env", {"path": "b.env"}]}) == ["a.env", "b.env"]
    assert replacing.environment_files({"env_file": "a.env"}) == ["a.env"]
    assert replacing.environment_files({}) == []
