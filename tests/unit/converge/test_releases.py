"""Releases: what is kept, what is refused, and where a rollback goes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import frontdoor_releases as releases
import pytest
from hypothesis import given
from hypothesis import strategies as st


def content(definition: str = "d1", **more: Any) -> releases.Content:
    return releases.Content(
        **{
            "variables": {"router_hold_max_seconds": 600},
            "images": {
                "engine": {"reference": "engine:1", "id": "sha256:1"},
                "router": {"reference": "router:1", "id": "sha256:9"},
            },
            "services": {"text": definition},
            "files": {"engines/compose.yml": releases.sha256(definition.encode())},
            **more,
        }
    )


def release(number: int, definition: str = "", **more: Any) -> releases.Release:
    made = content(definition or f"d{number}", **more)
    return releases.Release(number, "2026-11-30T12:00:00+00:00", "somebody", made)


def test_a_release_comes_back_as_it_was_kept() -> None:
    one = replace(release(3), back_to=1)
    assert releases.from_document(json.loads(json.dumps(releases.to_document(one)))) == one


@pytest.mark.parametrize(
    "edit",
    [
        {"variables": {"router_hold_max_seconds": 601}},
        {"images": {}},
        {"number": 4},
        {"extra": 1},
        {"digest": "0" * 64},
        {"digest": None},
    ],
)
def test_a_release_that_was_altered_by_hand_is_refused(edit: dict[str, Any]) -> None:
    with pytest.raises(releases.ReleaseError, match="altered by hand"):
        releases.from_document({**releases.to_document(release(3)), **edit})


@pytest.mark.parametrize("document", [None, [], {}, {"schema_version": 2}])
def test_what_is_no_release_is_refused(document: Any) -> None:
    with pytest.raises(releases.ReleaseError, match="no release of this version"):
        releases.from_document(document)


def test_rendered_files_that_were_altered_added_or_removed() -> None:
    one = release(1, files={"a": "1", "b": "2"})
    assert releases.altered_files(one, {"a": "1", "b": "2"}) == []
    assert releases.altered_files(one, {"a": "1", "b": "3"}) == ["b"]
    assert releases.altered_files(one, {"a": "1"}) == ["b"]
    assert releases.altered_files(one, {"a": "1", "b": "2", "c": "3"}) == ["c"]


def test_what_deploys_the_same_is_the_same_release() -> None:
    assert releases.is_same(content(), content(variables={"other": 1}))
    assert not releases.is_same(content(), content(files={"engines/compose.yml": "x"}))
    other = {"engine": {"reference": "engine:1", "id": "sha256:2"}, "router": content().images["router"]}
    assert not releases.is_same(content(), content(images=other))


@given(st.sets(st.integers(1, 50)))
def test_the_newest_five_stay(numbers: set[int]) -> None:
    leaving = releases.surplus(numbers)
    staying = sorted(numbers - set(leaving))
    assert len(staying) == min(5, len(numbers))
    assert all(old < new for old in leaving for new in staying)
    assert releases.next_number(numbers) not in numbers


def test_images_go_only_when_no_release_uses_them() -> None:
    def with_engine(number: int, image: str) -> releases.Release:
        images = {**content().images, "engine": {"reference": "engine", "id": image}}
        return release(number, images=images)

    leaving = [with_engine(1, "sha256:a"), with_engine(2, "sha256:b")]
    assert releases.superseded_images(leaving, [with_engine(3, "sha256:b")]) == ["sha256:a"]
    assert releases.superseded_images(leaving, []) == ["sha256:9", "sha256:a", "sha256:b"]


def target(
    *intact: releases.Release,
    deployed: str,
    wanted: int | None = None,
    problems: dict[int, str] | None = None,
) -> int:
    return releases.rollback_target(intact, problems or {}, {"text": deployed}, wanted).number


def test_a_rollback_goes_to_the_release_before_what_runs() -> None:
    assert target(release(1), release(2), deployed="d2") == 1


def test_after_a_run_that_failed_half_way_it_goes_to_the_newest() -> None:
    assert target(release(1), release(2), deployed="something else") == 2


def test_a_rollback_to_the_release_that_one_asks_for() -> None:
    assert target(release(1), release(2), release(3), deployed="d3", wanted=1) == 1


@pytest.mark.parametrize(
    ("intact", "problems", "wanted", "words"),
    [
        ([], {}, None, "no release on this box yet"),
        ([release(2)], {}, None, "no release before release 2"),
        (
            [release(2)],
            {1: "it was altered by hand"},
            None,
            "Release 1 can't be used: it was altered by hand",
        ),
        ([release(2)], {1: "it was altered by hand"}, 1, "altered by hand. Choose another one"),
        ([release(1), release(2)], {}, 7, r"no release 7 .* there: 1, 2"),
    ],
)
def test_a_rollback_that_goes_nowhere_says_why(
    intact: list[releases.Release], problems: dict[int, str], wanted: int | None, words: str
) -> None:
    with pytest.raises(releases.ReleaseError, match=words):
        releases.rollback_target(intact, problems, {"text": "d2"}, wanted)


def test_a_release_for_people() -> None:
    words = releases.description(replace(release(3), back_to=1))
    assert (
        words.startswith("release 3 of 2026-11-30") and "back to release 1" in words and "engine:1" in words
    )
