"""What a run keeps on the disk, and which services it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontdoor_calibration.drive import objection
from frontdoor_calibration.figures import Measurement, Reading, Round, to_document
from frontdoor_calibration.router import Service
from frontdoor_calibration.run import PAGE, Files, choose, replace_file


def service(name: str, depth: str = "awake", conditions: tuple[str, ...] = ()) -> Service:
    return Service(name, "m", depth, conditions, 0, 0, 1.0, False, True, "a reason")


def measured(name: str) -> Measurement:
    memory = {"awake": Reading(2**30, 0), "sleeping": Reading(2**29, 0)}
    return Measurement(name, "m", "2026-08-12T09:00:00Z", True, (Round({"sleep": 1.0}, memory),), "", "")


def test_the_page_keeps_what_other_runs_measured_and_drops_what_is_gone(tmp_path: Path) -> None:
    files = Files(tmp_path / "calibration", "default")
    for name in ("text", "gone", "embed"):
        files.keep(measured(name), {"service": name})
    files.write_page(["text", "embed", "new"])
    page = (files.folder / PAGE).read_text()
    assert page.index("| embed |") < page.index("| text |")
    assert "gone" not in page
    assert json.loads((files.folder / "text.json").read_bytes()) == {"service": "text"}


def test_the_picture_goes_with_what_it_shows(tmp_path: Path) -> None:
    files = Files(tmp_path, "default")
    files.keep(measured("text"), {})
    files.write_page(["text"])
    assert "](memory.svg)" in (tmp_path / PAGE).read_text()
    assert (tmp_path / "memory.svg").read_text().startswith("<svg ")
    files.write_page([])
    assert not (tmp_path / "memory.svg").exists()
    assert "memory.svg" not in (tmp_path / PAGE).read_text()


def test_a_damaged_measurement_is_left_out(tmp_path: Path) -> None:
    files = Files(tmp_path, "default")
    replace_file(tmp_path / "measured/text.json", b"{")
    replace_file(tmp_path / "measured/embed.json", json.dumps(to_document(measured("embed"))).encode())
    files.write_page(["text", "embed"])
    page = (tmp_path / PAGE).read_text()
    assert "| embed |" in page
    assert "| text |" not in page


def test_the_plan_reads_no_file_but_the_figures(tmp_path: Path) -> None:
    """Discovery takes every *.json of the folder."""
    files = Files(tmp_path, "default")
    files.keep(measured("text"), {})
    files.remember({"text": "awake"})
    files.write_page(["text"])
    assert [path.name for path in tmp_path.glob("*.json")] == ["text.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"text": "elsewhere"}'])
def test_a_damaged_record_brings_nothing_back(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".under-way").write_bytes(content)
    assert Files(tmp_path, "default").under_way() == {}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = Files(tmp_path, "default")
    files.remember({"text": "sleeping", "embed": "awake"})
    assert files.under_way() == {"text": "sleeping", "embed": "awake"}
    files.remember({})
    assert list(tmp_path.iterdir()) == []


def test_services_are_chosen_by_name_or_all() -> None:
    services = {name: service(name) for name in ("text", "embed")}
    assert choose(services, []) == (["text", "embed"], [])
    assert choose(services, ["embed", "embed"]) == (["embed"], [])
    names, (sentence,) = choose(services, ["txt"])
    assert names == []
    assert "txt, which isn't deployed; there are: text, embed." in sentence


@pytest.mark.parametrize("condition", ["draining", "maintenance", "quarantined", "failed"])
def test_what_a_person_or_the_router_works_on_is_not_touched(condition: str) -> None:
    assert condition in str(objection(service("text", conditions=(condition,))))


def test_what_passes_by_itself_is_waited_for() -> None:
    assert objection(service("text", "waking")) is None
    assert objection(service("text", "awake", ("unproven",))) is None
    assert "stopped: a reason" in str(objection(service("text", "stopped")))
