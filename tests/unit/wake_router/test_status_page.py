"""The status page's pure parts: evidence as it is read, and markup that can't be broken out of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from gpu_diag.integrity.verdict import DeviceResult, Finding, judge
from wake_router.admin_contract import DeviceMemory, Status
from wake_router.status_page.evidence import EvidenceReader, EvidenceView
from wake_router.status_page.memory_bars import HEIGHT, WIDTH, memory_section
from wake_router.status_page.page import PageView, content, page
from wake_router.status_page.plots import seconds_plot
from wake_router.status_page.units import size

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


def test_a_gpu_that_is_bad_by_itself_is_named_with_its_faults(tmp_path: Path) -> None:
    folder = evidence_folder(tmp_path)
    (path,) = (folder / "integrity").iterdir()
    bad = DeviceResult("A GPU", "GPU-1", (Finding("copy", "3 of 9 words are wrong"),), "hang", "It hung.")
    judged = judge(
        [DeviceResult("A GPU", "GPU-0", ()), bad, DeviceResult("A CPU", None, (), "hang", "It hung, too.")]
    )
    document = json.loads(path.read_text()) | {
        "verdict": judged.verdict, "evidence": judged.evidence, "details": {"devices": judged.devices},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    p2p, integrity = reader(folder).read(NOW).paths
    assert [each.model_dump() for each in integrity.condemned] == [
        {
            "device": "GPU-1", "number": 1, "name": "A GPU", "verdict": "corrupt",
            "faults": ["3 of 9 words are wrong.", "It hung."],
        },
        {
            "device": None, "number": 2, "name": "A CPU", "verdict": "hang",
            "faults": ["It hung, too."],
        },
    ]  # fmt: skip
    assert (p2p.verdict, p2p.condemned) == ("corrupt", []), "of pairs, which are no verdict on one GPU"


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


GIB = 2**30
SHARE: dict[str, Any] = {
    "service": "text", "depth": "awake", "planned_bytes": 68 * GIB, "awake_bytes": 68 * GIB,
    "asleep_bytes": 5 * GIB, "asleep_is_measured": False, "resident_bytes": None,
}  # fmt: skip
DEVICE: dict[str, Any] = {
    "device": "GPU-1", "name": "gpu0", "kind": "cuda", "total_bytes": 80 * GIB, "limit_bytes": 72 * GIB,
    "planned_bytes": 68 * GIB, "used_bytes": 60 * GIB, "age_seconds": 12.0, "over_plan": False,
    "shares": [SHARE], "problems": [],
}  # fmt: skip


def bars(**changes: Any) -> str:
    return memory_section([DeviceMemory.model_validate(DEVICE | changes)])


def test_each_bar_is_told_in_words() -> None:
    text = bars()
    titles = re.findall(r"<title>(.*?)</title>", text)
    assert titles == [
        "gpu0: text, awake: planned 68.0 GiB (asleep 5.0 GiB, estimated)",
        "gpu0: Together: planned 68.0 GiB, measured 60.0 GiB 12 s ago; limit 72.0 GiB of 80.0 GiB",
    ]
    for title in titles:
        assert f"<p>{title.removeprefix('gpu0: ')}</p>" in text
    assert text.count('role="img"') == len(titles)
    assert "over plan" not in text and "CPU devices" not in text


def test_bars_are_as_long_as_what_they_show() -> None:
    widths = re.findall(
        r'class="(\w+(?: over)?)" x="([\d.]+)" y="\d+" width="([\d.]+)"', bars(over_plan=True)
    )
    by_name = {name: (float(x), float(width)) for name, x, width in widths}
    assert by_name["planned"] == (0, WIDTH * 68 / 80)
    assert by_name["used over"] == (0, WIDTH * 60 / 80)
    assert by_name["limit"] == (WIDTH * 72 / 80, 1)
    assert "over plan" in bars(over_plan=True)


def test_bars_stay_within_their_frame() -> None:
    text = bars(used_bytes=900 * GIB, planned_bytes=90 * GIB, limit_bytes=80 * GIB)
    for x, y, width, height in re.findall(
        r'<rect class="[\w ]+" x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="(\d+)"', text
    ):
        assert 0 <= float(x) + float(width) <= WIDTH
        assert 0 <= int(y) + int(height) <= HEIGHT


def test_what_is_not_known_has_no_bar_and_says_so() -> None:
    text = bars(used_bytes=None, age_seconds=None, over_plan=None, problems=["nvidia-smi hangs"])
    assert "measured unknown; limit" in text and "nvidia-smi hangs" in text
    assert 'class="used' not in text
    assert "deploy again" in bars(limit_bytes=None, planned_bytes=None)
    assert "<svg" not in bars(total_bytes=None)
    assert "nobody measures it" in bars(shares=[], planned_bytes=0, used_bytes=None)
    assert memory_section([]) == "<p>No device is known.</p>"


def test_on_the_cpu_it_says_what_plays_the_gpus_part() -> None:
    text = bars(kind="cpu", shares=[SHARE | {"resident_bytes": 3 * GIB}], used_bytes=3 * GIB)
    assert "resident memory plays the part of a GPU" in text
    assert "together their engines hold 3.0 GiB, the limit is 72.0 GiB" in text
    assert "text, awake: planned 68.0 GiB, holds 3.0 GiB" in text
    assert "engines hold unknown" in bars(kind="cpu", used_bytes=None)


def test_sizes() -> None:
    assert [size(each) for each in (None, 0, 5 * 2**20, 3 * GIB // 2, 2**41)] == [
        *("unknown", "0 MiB", "5 MiB", "1.5 GiB", "2.0 TiB")
    ]


def evil_view() -> PageView:
    service = {
        "name": "text", "model": EVIL, "aliases": [EVIL], "task": "generate", "depth": "awake",
        "conditions": [], "since_seconds": 1.0, "in_flight": 0, "held": 2, "idle_seconds": 0.0,
        "devices": [EVIL], "incarnation": None, "last_wake_seconds": None, "pinned": False,
        "retry_in_seconds": None, "reason": EVIL, "restartable": True,
    }  # fmt: skip
    memory = DEVICE | {"device": EVIL, "name": EVIL, "problems": [EVIL]}
    memory["shares"] = [SHARE | {"service": EVIL}]
    weights = {"model": EVIL, "verdict": EVIL, "finished_at": EVIL, "age_seconds": 1.0}
    path = {
        "kind": "p2p", "verdict": EVIL, "finished_at": EVIL, "age_seconds": 1.0, "of_this_boot": False,
        "devices": [EVIL], "pairs": [{"source": 0, "destination": 0, "verdict": EVIL}],
        "sentences": [EVIL], "suspicions": [EVIL],
    }  # fmt: skip
    return PageView(
        status=Status.model_validate(
            {"instance": EVIL, "services": [service], "cordoned": [EVIL], "device_memory": [memory]}
        ),
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
