"""Which image a reference has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.engine_image_pins import (
    Pin,
    PinError,
    checked_digest,
    expected_digest,
    pins_document,
    read_pins,
    repository_of,
)
from ansible.module_utils.engine_image_record import load, remember

OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PINS = {"vllm/vllm-openai:v0.27.1": Pin(id="sha256:i", digest=OLD)}


def test_a_given_digest_wins_over_the_recorded_one() -> None:
    assert expected_digest("vllm/vllm-openai:v0.27.1", NEW, PINS) == NEW
    assert expected_digest("vllm/vllm-openai:v0.27.1", "", PINS) == OLD
    assert expected_digest("vllm/vllm-openai:v0.32.0", "", PINS) == ""


def test_the_first_digest_seen_is_taken_and_the_expected_one_is_kept() -> None:
    assert checked_digest("x:1", "", [NEW], given=False, record="r") == NEW
    assert checked_digest("x:1", OLD, [NEW, OLD], given=False, record="r") == OLD


@pytest.mark.parametrize(("given", "where"), [(True, "engine_image_digest says"), (False, "images.json")])
def test_another_digest_is_refused_with_where_the_expected_one_is_set(given: bool, where: str) -> None:
    with pytest.raises(PinError) as refusal:
        checked_digest("x:1", OLD, [NEW], given=given, record="/var/images.json")
    assert all(part in str(refusal.value) for part in (where, OLD, NEW, "docker image rm"))


def test_an_image_that_came_from_no_registry_is_refused() -> None:
    with pytest.raises(PinError, match="engine_image_source"):
        checked_digest("x:1", "", [], given=False, record="r")


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("vllm/vllm-openai:v1", "vllm/vllm-openai"),
        ("localhost:5000/vllm", "localhost:5000/vllm"),
        ("localhost:5000/vllm:v1", "localhost:5000/vllm"),
        (f"a/b:v1@{OLD}", "a/b"),
    ],
)
def test_the_repository_is_what_precedes_tag_and_digest(reference: str, repository: str) -> None:
    assert repository_of(reference) == repository


def test_the_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = tmp_path / "new" / "images.json"
    assert load(record) == {}
    assert remember(record, "x:1", Pin(id="i", digest=OLD))
    assert not remember(record, "x:1", Pin(id="i", digest=OLD))
    assert remember(record, "y:1", Pin(id="j", archive="a"))
    assert load(record) == {"x:1": Pin(id="i", digest=OLD), "y:1": Pin(id="j", archive="a")}
    assert record.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in record.parent.iterdir()] == ["images.json"]


@pytest.mark.parametrize(
    "document", [None, [], {}, {"schema_version": 1}, {"schema_version": 1, "images": {"x": {"unknown": 1}}}]
)
def test_a_record_that_is_none_is_refused(document: Any) -> None:
    with pytest.raises(PinError, match="move it away"):
        read_pins(document, "images.json")


def test_a_record_of_a_later_schema_is_refused() -> None:
    with pytest.raises(PinError, match="schema version 2"):
        read_pins({**pins_document(PINS), "schema_version": 2}, "images.json")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "images.json"
    record.write_text("{")
    with pytest.raises(PinError, match="can't be read"):
        load(record)
