"""History and report: the recorded dates of one real box must give the conclusion that was right there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import permutations
from pathlib import Path

import jsonschema
import pytest
from gpu_diag import cli
from gpu_diag.evidence import json_schema
from gpu_diag.hostfacts.gpu_diag_evidence_files import documents
from gpu_diag.report.blocks import Block, Heading, Items, Paragraph, Table, to_html, to_markdown
from gpu_diag.report.diagnosis import Diagnosis, Host, diagnose, host_of
from gpu_diag.report.history import Json, boots_of, changes, runs_of
from gpu_diag.report.report import make_report

Pairs = Iterable[tuple[int, int]]


@pytest.fixture
def box(fixtures: Path) -> dict[str, list[Json]]:
    """The evidence of the box: day 1, and two runs on day 5 after a reboot."""
    problems: list[str] = []
    found = {
        kind: documents(str(fixtures / "original-box"), kind, problems)
        for kind in ("p2p", "integrity", "host")
    }
    assert problems == []
    return found


def identity_of(box: dict[str, list[Json]]) -> Json:
    identity = box["p2p"][0]["identity"]
    assert isinstance(identity, dict)
    return identity


def test_the_recorded_evidence_is_of_the_schema(box: dict[str, list[Json]]) -> None:
    for document in (one for found in box.values() for one in found):
        jsonschema.validate(document, json_schema())


def test_the_recorded_history_gives_the_right_conclusion(box: dict[str, list[Json]]) -> None:
    boots = boots_of(runs_of(box["p2p"]))
    diagnosis = diagnose(boots, True, host_of(box["host"][0], identity_of(box)))
    assert diagnosis.cause == "platform"
    assert "not in the silicon" in diagnosis.headline
    why = " ".join(diagnosis.why)
    for part in (
        "Sorted by source GPU",
        "the bad set moved",
        "copies and computes correctly",
        "no `iommu=pt`",
    ):
        assert part in why
    texts = [step.text for step in diagnosis.ladder]
    assert "iommu=pt" in texts[0] and "NVLink" in texts[1] and "ACS" in texts[2] and "Swap" in texts[3]
    assert [step.decisive for step in diagnosis.ladder] == [True, False, False, False]


def test_what_changed_is_told_by_source(box: dict[str, list[Json]]) -> None:
    boots = boots_of(runs_of(box["p2p"]))
    assert [len(boot.runs) for boot in boots] == [1, 2]
    assert changes(boots[0].last, boots[1].last) == [
        "GPU 0 as source stayed corrupt.",
        "GPU 1 as source went from clean to corrupt.",
        "GPU 2 as source went from corrupt to clean.",
        "The kernel changed from 6.8.0-117 to 6.8.0-137.",
    ]


def test_the_report_says_the_verdict_first(box: dict[str, list[Json]]) -> None:
    text = to_markdown(make_report(box, [], identity_of(box), "gpu-box", "2026-08-08"))
    order = [
        "## Verdict",
        "platform's state",
        "## Matrix by source",
        "## What changed",
        "## Why",
        "## What to do",
    ]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "| GPU 2 (0000:ab:00.0) | clean | clean |  | clean |" in text
    assert "Since the last run: nothing." in text
    assert "(The decisive experiment.)" in text


def test_stale_and_suspect_evidence_is_said_to_be(box: dict[str, list[Json]]) -> None:
    rebooted = {**identity_of(box), "boot_id": "another"}
    assert "stale: the machine was booted again" in to_markdown(make_report(box, [], rebooted, "b", "x"))
    mark = {
        "boot_id": identity_of(box)["boot_id"],
        "pci_address": "0000:3d:00.0",
        "at": "2026-08-07T11:00:00.000000Z",
        "sentence": "A fault came.",
    }
    assert "suspect: A fault came." in to_markdown(make_report(box, [mark], identity_of(box), "b", "x"))


def test_the_command_writes_both_forms_and_json(
    fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = str(fixtures / "original-box")
    assert cli.main(["report", "--evidence", evidence, "--output", str(tmp_path / "out")]) == 0
    markdown, page = (
        (tmp_path / "out" / "report.md").read_text(),
        (tmp_path / "out" / "report.html").read_text(),
    )
    assert "platform's state" in markdown
    assert "platform&#x27;s state" in page and '<td class="corrupt">' in page
    capsys.readouterr()
    assert cli.main(["report", "--evidence", evidence, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "platform"


def test_a_box_without_evidence_gets_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--evidence", str(tmp_path)]) == 0
    assert "have not been checked yet" in capsys.readouterr().out


def test_a_folder_that_is_not_there_makes_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt folder must not read like a box that was never checked."""
    for form in ([], ["--json"], ["--output", str(tmp_path / "out")]):
        assert cli.main(["report", "--evidence", str(tmp_path / "evidense"), *form]) == 3
        said = capsys.readouterr()
        assert said.out == "" and "there is no folder of evidence" in said.err
    assert not (tmp_path / "out").exists()


def run(boot: str, bad: Pairs, boards: str = "ABC", day: int = 1, verdict: str = "corrupt") -> Json:
    """A p2p document: the letters are the boards in slots 0, 1 and 2."""
    worst = set(bad)
    gpus = [
        {"uuid": f"GPU-{board}", "serial": f"serial-{board}", "pci_address": f"slot-{slot}"}
        for slot, board in enumerate(boards)
    ]
    return {
        "finished_at": f"2026-08-{day:02d}T00:00:00Z",
        "verdict": verdict if worst else "clean",
        "class": None,
        "identity": {"boot_id": boot, "kernel": "6.8", "kernel_command_line": "", "gpus": gpus},
        "details": {
            "devices": gpus,
            "pairs": [
                {"source": a, "destination": b, "verdict": verdict if (a, b) in worst else "clean"}
                for a, b in permutations(range(len(boards)), 2)
            ],
        },
    }


def from_source(*sources: int) -> list[tuple[int, int]]:
    return [(a, b) for a, b in permutations(range(3), 2) if a in sources]


def diagnosis(*found: Json, clean: bool | None = True, host: Host | None = None) -> Diagnosis:
    return diagnose(boots_of(runs_of(found)), clean, host or Host())


def test_a_fault_that_goes_with_the_board_is_the_boards() -> None:
    found = diagnosis(run("1", from_source(0)), run("2", from_source(1), "BAC", 2))
    assert found.cause == "board"
    assert found.ladder[0].decisive and "Swap" in found.ladder[0].text
    assert not any("iommu" in step.text for step in found.ladder)


def test_a_fault_that_stays_in_the_slot_is_the_fabrics() -> None:
    found = diagnosis(run("1", from_source(0)), run("2", from_source(0), "BAC", 2))
    assert found.cause == "fabric"


def test_a_fault_that_stays_put_is_undecided_until_boards_are_swapped() -> None:
    found = diagnosis(run("1", from_source(0)), run("2", from_source(0), day=2))
    assert found.cause == "undecided"
    assert "iommu=pt" in found.ladder[0].text and "Swap" in found.ladder[-1].text


def test_a_moving_fault_with_a_gpu_that_is_not_clean_itself_is_not_blamed_on_the_platform() -> None:
    moved = (run("1", from_source(0)), run("2", from_source(1), day=2))
    assert diagnosis(*moved).cause == "platform"
    assert diagnosis(*moved, clean=None).cause == "platform"
    assert diagnosis(*moved, clean=False).cause == "undecided"


def test_where_translation_is_off_already_it_is_not_advised_again() -> None:
    found = diagnosis(run("1", from_source(0)), host=Host(passthrough_asked=True, nvlink_down=False))
    assert not any("iommu=pt" in step.text or "NVLink" in step.text for step in found.ladder)


def test_a_hang_does_not_insist_on_the_iommu() -> None:
    found = diagnosis(run("1", from_source(0, 1, 2), verdict="hang"))
    assert found.cause == "hang"
    assert not any(step.decisive for step in found.ladder)


def test_a_fault_that_is_gone_needs_nothing() -> None:
    found = diagnosis(run("1", from_source(0)), run("2", [], day=2))
    assert (found.cause, found.ladder) == ("none", ())
    assert "gone in the present boot" in found.headline


def test_a_failed_control_arm_is_never_blamed_on_the_path() -> None:
    document = {**run("1", []), "verdict": "inconclusive", "class": "control_failed"}
    found = diagnosis(document)
    assert found.cause == "control"
    assert len(found.ladder) == 1


@pytest.mark.parametrize(
    ("bad", "pattern"),
    [
        ([], "none"),
        (from_source(0, 1, 2), "all"),
        (from_source(0, 2), "source"),
        ([(0, 1), (2, 1)], "destination"),
        ([(0, 1)], "pair"),
    ],
)
def test_what_sorts_bad_from_good(bad: Pairs, pattern: str) -> None:
    (one,) = runs_of([run("1", bad)])
    assert one.pattern() == pattern


class Collector(HTMLParser):
    """Remembers the tags of a page, and that each one is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_escapes_what_it_is_given() -> None:
    hostile = '<script>alert("x")</script>'
    blocks: list[Block] = [
        Heading(1, hostile),
        Paragraph(hostile),
        Items([hostile]),
        Table([hostile], [[hostile, "clean"]]),
    ]
    parser = Collector()
    parser.feed(to_html(blocks))
    assert "script" not in parser.seen and parser.open == []
    assert "| a\\|b |" in to_markdown([Table(["x"], [["a|b"]])])
