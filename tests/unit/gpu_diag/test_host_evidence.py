"""Host evidence: topology, NVLink and the kernel log, and what of it makes evidence suspect."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gpu_diag import cli, watch
from gpu_diag.evidence import timestamp
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.hostfacts.gpu_diag_evidence_files import revoked_by
from gpu_diag.hostfacts.kernel_log import Event, parse_kernel_log
from gpu_diag.hostfacts.topology import NvLink, parse_nvlink_status, parse_peer_status, parse_topology
from gpu_diag.hostfacts.xid import meaning_of
from gpu_diag.suspicion import from_engine, from_event, from_inventories


def test_topology_with_escapes_blank_columns_and_a_code_of_tomorrow(fixtures: Path) -> None:
    matrix = parse_topology((fixtures / "topo-m-595.71.05-three-gpus.txt").read_text())
    assert matrix["GPU0"] == {"GPU1": "NODE", "GPU2": "SYS", "NIC0": "PXB"}
    assert matrix["GPU1"] == {"GPU0": "NODE", "GPU2": "SYS", "NIC0": "NODE"}
    assert matrix["GPU2"]["NIC0"] is None
    assert matrix["NIC0"]["GPU0"] == "PXB"


def test_topology_whose_tabs_a_paste_turned_into_spaces() -> None:
    matrix = parse_topology(
        "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV12    0-31\nGPU1    NV12     X      0-31\n"
    )
    assert matrix == {"GPU0": {"GPU1": "NV12"}, "GPU1": {"GPU0": "NV12"}}


def test_peer_status(fixtures: Path) -> None:
    matrix = parse_peer_status((fixtures / "topo-p2p-r-595.71.05-three-gpus.txt").read_text())
    assert matrix["GPU0"] == {"GPU1": "OK", "GPU2": "CNS"}
    assert matrix["GPU1"]["GPU2"] is None
    assert matrix["GPU2"]["GPU1"] == "U"


def test_nvlink_status(fixtures: Path) -> None:
    links = parse_nvlink_status((fixtures / "nvlink-status-595.71.05-two-gpus.txt").read_text())
    assert links == {
        "GPU-00000000-1111-2222-3333-444444444444": [NvLink(0, None), NvLink(1, None)],
        "GPU-00000001-1111-2222-3333-444444444444": [NvLink(0, 25.781), NvLink(1, 25.0)],
    }


# Lines in the forms of Linux 5.15 to 6.8 and drivers 470 to 595.
LINES: dict[str, tuple[str, str, str | None, int | None, str]] = {
    "Xid": (
        "[12.5] NVRM: Xid (PCI:0000:3d:00): 31, pid=77, name=python3, Ch 00000008, intr 00000000. MMU Fault",
        "xid",
        "0000:3d:00.0",
        31,
        "error",
    ),
    "Xid without PCI:": (
        "NVRM: Xid (0000:07:00): 13, Graphics Exception",
        "xid",
        "0000:07:00.0",
        13,
        "warning",
    ),
    "Xid of nobody": (
        "[Sat Aug  8 09:30:00 2026] NVRM: Xid (PCI:0000:9B:00): 119, pid='<unknown>', name=<unknown>",
        "xid",
        "0000:9b:00.0",
        119,
        "error",
    ),
    "Xid 154": (
        "4,812,99000000,-;NVRM: Xid (PCI:0000:ab:00): 154, GPU recovery action changed to 0x1",
        "xid",
        "0000:ab:00.0",
        154,
        "warning",
    ),
    "an Xid of tomorrow": (
        "NVRM: Xid (PCI:0000:3d:00): 999, something",
        "xid",
        "0000:3d:00.0",
        999,
        "warning",
    ),
    "off the bus": (
        "NVRM: GPU 0000:63:00.0: GPU has fallen off the bus.",
        "off_the_bus",
        "0000:63:00.0",
        None,
        "fatal",
    ),
    "DMAR": (
        "kern host kernel: DMAR: [DMA Write NO_PASID] Request device [3d:00.0] fault addr 0xccfff000 [fault",
        "dmar",
        "0000:3d:00.0",
        None,
        "error",
    ),
    "DMAR of Linux 5": (
        "[1.0] DMAR: [DMA Read] Request device [07:00.0] PASID ffffffff fault addr ffff0000",
        "dmar",
        "0000:07:00.0",
        None,
        "error",
    ),
    "AMD-Vi": (
        "[1.0] nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040]",
        "amd_vi",
        "0000:07:00.0",
        None,
        "error",
    ),
    "AMD-Vi with the device inside": (
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x0003 address=0x80000040 flags=0x0020]",
        "amd_vi",
        "0000:0a:00.0",
        None,
        "error",
    ),
    "AER corrected": (
        "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3d:00.0",
        "aer",
        "0000:3a:00.0",
        None,
        "warning",
    ),
    "AER fatal": (
        "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3d:00.0",
        "aer",
        "0000:3a:00.0",
        None,
        "fatal",
    ),
    "AER not fatal": (
        "nvidia 0000:3d:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
        "aer",
        "0000:3d:00.0",
        None,
        "error",
    ),
    "probed": ("nvidia 0000:ab:00.0: Using 47-bit DMA addresses", "probed", "0000:ab:00.0", None, "info"),
    "suppressed": ("dmar_fault: 122 callbacks suppressed", "suppressed", None, None, "info"),
}


@pytest.mark.parametrize("name", LINES)
def test_each_form_of_line_is_understood(name: str) -> None:
    line, kind, address, code, severity = LINES[name]
    (event,) = parse_kernel_log([line])
    assert (event.kind, event.pci_address, event.code, event.severity) == (kind, address, code, severity)
    assert event.meaning.endswith((".", "to what."))
    assert event.text in line


def test_times_and_sequences_are_kept() -> None:
    kmsg, dmesg, dated = parse_kernel_log(LINES[name][0] for name in ("Xid 154", "Xid", "Xid of nobody"))
    assert (kmsg.seconds, kmsg.sequence) == (99.0, 812)
    assert (dmesg.seconds, dmesg.sequence) == (12.5, None)
    assert dated.date == "Sat Aug  8 09:30:00 2026"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "[1.0] eth0: link up",
        "Xid 31",
        "NVRM: Xid (PCI:zz): 31",
    ],
)
def test_other_lines_are_no_events(line: str) -> None:
    assert parse_kernel_log([line]) == []


def test_an_unknown_xid_is_said_to_be_unknown() -> None:
    assert meaning_of(999).kind == "unknown"


GPUS = ["0000:3d:00.0", "0000:07:00.0", "0000:63:00.0", "0000:ab:00.0", "0000:0a:00.0"]
SUSPICIOUS = {
    "Xid": "xid_31",
    "off the bus": "off_the_bus",
    "DMAR": "iommu_fault",
    "DMAR of Linux 5": "iommu_fault",
    "AMD-Vi": "iommu_fault",
    "AMD-Vi with the device inside": "iommu_fault",
    "probed": "probed_again",
}


@pytest.mark.parametrize("name", LINES)
def test_which_lines_make_a_gpu_suspect(name: str) -> None:
    (event,) = parse_kernel_log([LINES[name][0]])
    found = from_event(event, GPUS)
    assert (found.rule if found else None) == SUSPICIOUS.get(name)
    assert from_event(event, ["0000:ff:00.0"]) is None


@pytest.mark.parametrize("code", [31, 32, 48, 63, 64, 79, 92, 94, 95, 140])
def test_xids_of_memory_dma_and_bus_make_suspect(code: int) -> None:
    (event,) = parse_kernel_log([f"NVRM: Xid (PCI:0000:3d:00): {code}, x"])
    assert from_event(event, GPUS) is not None


@pytest.mark.parametrize("code", [13, 43, 45, 69, 154, 999])
def test_xids_of_programs_do_not(code: int) -> None:
    (event,) = parse_kernel_log([f"NVRM: Xid (PCI:0000:3d:00): {code}, x"])
    assert from_event(event, GPUS) is None


def test_gpus_that_vanish_or_appear_are_suspect() -> None:
    found = from_inventories(["0000:3d:00.0", "0000:63:00.0"], ["0000:3d:00.0", "0000:ab:00.0"])
    assert [(one.rule, one.pci_address) for one in found] == [
        ("gpu_vanished", "0000:63:00.0"),
        ("gpu_appeared", "0000:ab:00.0"),
    ]
    assert from_inventories(GPUS, GPUS) == []


@pytest.mark.parametrize("reason", ["nan", "canary"])
def test_what_an_engine_saw_makes_its_gpus_suspect(reason: str) -> None:
    found = from_engine(["0000:3d:00.0", "0000:63:00.0"], reason, "2026-08-08")
    assert [one.rule for one in found] == [f"engine_{reason}"] * 2


def test_a_mark_revokes_what_was_proven_before_it_on_its_gpu_in_its_boot() -> None:
    document = {
        "finished_at": "2026-08-08T10:00:00.000000Z",
        "identity": {"boot_id": "one", "gpus": [{"pci_address": "0000:3d:00.0"}]},
    }
    (suspicion,) = from_engine(["0000:3d:00.0"], "nan", "x")
    after, before = "2026-08-08T10:00:01.000000Z", "2026-08-08T09:59:59.000000Z"
    assert revoked_by(document, [suspicion.mark("one", after)]) == [suspicion.sentence]
    assert revoked_by(document, [suspicion.mark("one", before)]) == []
    assert revoked_by(document, [suspicion.mark("two", after)]) == []
    (elsewhere,) = from_engine(["0000:63:00.0"], "nan", "x")
    assert revoked_by(document, [elsewhere.mark("one", after)]) == []
    assert revoked_by({"identity": None}, [suspicion.mark("one", after)]) == []


def test_the_watcher_marks_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,1,99000000,-;NVRM: Xid (PCI:0000:3d:00): 31, x\n6,2,99000001,-;eth0: link up\n")
    box = {"boot_id": "one", "gpus": [{"pci_address": "0000:3d:00.0"}]}
    monkeypatch.setattr(watch, "discover", lambda _: box)
    evidence = tmp_path / "evidence"
    line = ["watch", "--evidence", str(evidence), "--kernel-log", str(log), "--once"]
    assert cli.main(line) == 0
    assert cli.main(line) == 0
    (path,) = (evidence / "suspect").glob("*.json")
    mark = json.loads(path.read_text())
    assert (mark["rule"], mark["pci_address"], mark["boot_id"]) == ("xid_31", "0000:3d:00.0", "one")
    found = discover(Question(evidence=str(evidence), nvidia_smi=["/absent"], docker=["/absent"]))
    assert found["suspicions"] == [mark]


def test_a_kernel_log_without_permission_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["watch", "--evidence", str(tmp_path), "--kernel-log", str(tmp_path / "absent"), "--once"]
    assert cli.main(line) == 3
    assert "can't be read (No such file or directory): run this as root" in capsys.readouterr().err


def test_the_moment_of_an_event_is_that_of_its_line() -> None:
    import time

    now = datetime.now(UTC)
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
    event = Event("xid", "", "error", "", seconds=max(0.0, uptime - 60))
    assert abs(watch.moment_of(event) - (now - timedelta(seconds=min(60, uptime)))) < timedelta(seconds=5)
    assert timestamp(watch.moment_of(Event("xid", "", "error", ""))) >= timestamp(now)
