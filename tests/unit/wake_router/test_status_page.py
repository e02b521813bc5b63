"""The status page's pure parts: evidence as it is read, and markup that can't be broken out of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from wake_router.admin_contract import Status
from wake_router.status_page.evidence import EvidenceReader, EvidenceView
from wake_router.status_page.page import PageView, content, page
from wake_router.status_page.plots import seconds_plot

FIXTURES = Path(__file__).resolve().parents[1] / "gpu_diag/fixtures/original-box"
BOOT = "22222222-0000-0000-0000-000000000002"
NOW = 1786096900.0
EVIL = '"><script>alert(1)</script>'


def reader(folder: Path, boot: str = BOOT) -> EvidenceReader:
    boot_id = folder.parent / "boot_id"
    boot_id.write_text(boot + "\n")
    return EvidenceReader(folder, boot_id)


def evidence_folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES, tmp_path / "evidence"))


def test_the_newest_of_each_probe_is_shown(tmp_path: Path) -> None:
    view = reader(evidence_folder(tmp_path)).read(NOW)
    p2p, integrity = view.paths
    assert (p2p.kind, p2p.verdict, p2p.finished_at[:19]) == ("p2p", "corrupt", "2026-08-07T10:00:30")
    assert (len(p2p.devices), len(p2p.pairs)) == (3, 6)
    assert integrity.verdict == "clean"
    assert p2p.of_this_boot
    assert 0 < p2p.age_seconds < 86400 * 2
    assert not reader(tmp_path / "evidence", "another").read(NOW).paths[0].of_this_boot


def test_marks_revoke_what_was_proven_before_them(tmp_path: Path) -> None:
    folder = evidence_folder(tmp_path)
    mark = {
        "schema_version": 1,
        "boot_id": BOOT,
        "pci_address": "0000:3d:00.0",
        "sentence": "Xid 79: it fell off the bus.",
    }
    (folder / "suspect").mkdir()
    (folder / "suspect" / "a.json").write_text(json.dumps({**mark, "at": "2026-08-07T10:01:00Z"}))
    p2p, integrity = reader(folder).read(NOW).paths
    assert p2p.suspicions == ["Xid 79: it fell off the bus."]
    assert integrity.suspicions == [], "it was probed after the mark"


def test_damaged_evidence_is_told_and_hides_nothing(tmp_path: Path) -> None:
    folder = evidence_folder(tmp_path)
    for name, text in (("2027.json", "{"), ("2028.json", "[]"), ("2029.json", '{"details": 3}')):
        (folder / "p2p" / name).write_text(text)
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "weights" / "a.json").write_text(
        '{"schema_version": 1, "details": {"model": "/m"}, "finished_at": "never"}'
    )
    view = reader(folder).read(NOW)
    assert [problem[13:22] for problem in view.problems] == ["2029.json", "2028.json", "2027.json"]
    assert view.weights[0].age_seconds == NOW
    assert view.paths[0].kind == "p2p"


def test_no_folder_is_no_evidence(tmp_path: Path) -> None:
    assert reader(tmp_path / "nothing").read(NOW) == EvidenceView(
        present=False, paths=[], weights=[], problems=[]
    )


def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    folder = evidence_folder(tmp_path)
    reads = reader(folder)
    assert len(reads.read(NOW).paths) == 2
    shutil.rmtree(folder / "p2p")
    assert [path.kind for path in reads.read(NOW).paths] == ["integrity"]


def evil_view() -> PageView:
    service = {
        "name": "text", "model": EVIL, "aliases": [EVIL], "task": "generate", "depth": "awake",
        "conditions": [], "since_seconds": 1.0, "in_flight": 0, "held": 2, "idle_seconds": 0.0,
        "devices": [EVIL], "incarnation": None, "last_wake_seconds": None, "pinned": False,
        "retry_in_seconds": None, "reason": EVIL, "restartable": True,
    }  # fmt: skip
    weights = {"model": EVIL, "verdict": EVIL, "finished_at": EVIL, "age_seconds": 1.0}
    path = {
        "kind": "p2p", "verdict": EVIL, "finished_at": EVIL, "age_seconds": 1.0, "of_this_boot": False,
        "devices": [EVIL], "pairs": [{"source": 0, "destination": 0, "verdict": EVIL}],
        "sentences": [EVIL], "suspicions": [EVIL],
    }  # fmt: skip
    return PageView(
        status=Status.model_validate({"instance": EVIL, "services": [service], "cordoned": [EVIL]}),
        evidence=EvidenceView.model_validate(
            {"present": True, "paths": [path], "weights": [weights], "problems": [EVIL]}
        ),
        wakes={EVIL: {EVIL: [1.0, 2.0]}},
        events=[{"time": EVIL, "event": EVIL, "service": EVIL, EVIL: [EVIL]}],
        shown_at=EVIL,
    )


def test_nothing_that_is_shown_becomes_markup() -> None:
    for text in (page(evil_view()), content(evil_view())):
        assert "<script>" not in text
        assert "alert(1)" in text
    assert re.findall(r"<script[^>]*>", page(evil_view())) == ['<script src="/status/page.js" defer>']


def test_an_empty_router_has_a_page() -> None:
    view = PageView(
        Status(instance="a", services=[], cordoned=[]),
        EvidenceView(present=False, paths=[], weights=[], problems=[]),
        {}, [], "now",
    )  # fmt: skip
    assert "No service is deployed." in page(view)
    assert "No request waits." in page(view)


def test_plots_stay_within_their_frame() -> None:
    for values in ([0.0], [5.0], [0.0, 0.0], [1.0, 100.0, 3.0]):
        plot = seconds_plot("a", values)
        for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', plot):
            assert 0 <= float(x) <= 160
            assert 0 <= float(y) <= 36
        assert plot.count("<circle") == len(values)
    assert seconds_plot("a", []) == ""
