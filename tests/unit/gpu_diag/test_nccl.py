"""The transport that NCCL chose, out of its log, against the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_diag.hostfacts.gpu_diag_nccl import Transports, objections, parse_nccl_log


def of_file(fixtures: Path, name: str) -> Transports:
    return parse_nccl_log((fixtures / f"nccl-{name}.log").read_text().splitlines())


def test_a_log_of_an_engine_that_stays_off_the_peer_path(fixtures: Path) -> None:
    seen = of_file(fixtures, "2.27-two-gpus-shared-memory")
    shared = frozenset({"SHM/direct/direct"})
    assert seen == Transports({(0, 1): shared, (1, 0): shared}, ranks=2, version="2.27.5")
    assert seen.kinds() == {"SHM"}
    assert objections(seen, 2, peer_allowed=False) == []


def test_the_peer_path_where_it_is_forbidden_is_told_by_pair(fixtures: Path) -> None:
    seen = of_file(fixtures, "2.27-two-gpus-peer")
    assert seen.pairs[0, 1] == {"P2P/CUMEM", "P2P/IPC"}
    assert seen.pairs[1, 0] == {"P2P/CUMEM/read"}
    first, second = objections(seen, 2, peer_allowed=False)
    assert "rank 0 to rank 1 via P2P/CUMEM, P2P/IPC" in first
    assert "rank 1 to rank 0 via P2P/CUMEM/read" in second
    assert objections(seen, 2, peer_allowed=True) == []


def test_one_pair_on_the_peer_path_among_others_is_enough(fixtures: Path) -> None:
    seen = of_file(fixtures, "2.10-three-gpus-mixed")
    assert (seen.ranks, seen.version) == (3, "2.10.3")
    assert seen.pairs == {(0, 1): {"P2P/IPC"}, (1, 2): {"SHM/direct"}, (2, 0): {"NET/Socket/0"}}
    (only,) = objections(seen, 3, peer_allowed=False)
    assert "rank 0 to rank 1 via P2P/IPC" in only


# Forms that NCCL 2.4 to 2.30 write, one of each.
FORMS = {
    "NCCL INFO Ring 00 : 0 -> 1 via direct shared memory": "SHM/direct",
    "NCCL INFO Ring 03 : 0[2] -> 1[3] via P2P/IPC": "P2P/IPC",
    "NCCL INFO Channel 02 : 0[b2000] -> 1[1a000] via P2P/direct pointer": "P2P/direct",
    "NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/direct pointer/read": "P2P/direct/read",
    "NCCL INFO Channel 00/1 : 0[0] -> 1[1] via P2P/indirect/2[2]": "P2P/indirect/2[2]",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL": "P2P/MNNVL",
    "NCCL INFO Channel 11 : 0[0] -> 1[1] via SHM/CE/direct": "SHM/CE/direct",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA(PCI)": "NET/IB/0/GDRDMA(PCI)",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0 comm 0x5 nRanks 02": "NET/IB/0",
    "\x1b[36m(Worker pid=9)\x1b[0m h:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC": "P2P/IPC",
}


@pytest.mark.parametrize("line", FORMS)
def test_each_form_of_line_is_understood(line: str) -> None:
    assert parse_nccl_log([line]).pairs == {(0, 1): {FORMS[line]}}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NCCL INFO Channel 00/02 : 0 1",
        "NCCL INFO Trees [0] 1/-1/-1->0->-1",
        "NCCL INFO Could not enable P2P between dev 0(=3d000) and dev 2(=ab000)",
        "NCCL INFO NET/IB : No device found.",
        "the model answers via P2P/IPC",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert parse_nccl_log([line]) == Transports({})


def test_a_log_that_does_not_tell_proves_nothing() -> None:
    (only,) = objections(parse_nccl_log(["INFO: Application startup complete."]), 2, peer_allowed=False)
    assert "NCCL_DEBUG=INFO" in only
    assert objections(Transports({}), 2, peer_allowed=True) != []
    assert objections(Transports({}), 1, peer_allowed=False) == []


def test_a_rank_that_is_not_named_is_told() -> None:
    seen = Transports({(0, 1): frozenset({"SHM/direct/direct"})})
    assert objections(seen, 3, peer_allowed=False) == ["NCCL's log names no transport for rank 2 of 3."]


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("h:1:1 [0] NCCL INFO Connected NVLS tree", True),
        ("h:1:1 [0] NCCL INFO NVLS comm 0x55984 headRank 2 nHeads 8 buffSize 4194304", True),
        ("h:1:1 [0] NCCL INFO NVLS multicast support is available on dev 0", False),
    ],
)
def test_multicast_that_is_set_up_is_a_peer_path_too(line: str, used: bool) -> None:
    seen = parse_nccl_log([line, "NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"])
    assert seen.multicast is used
    assert bool(objections(seen, 2, peer_allowed=False)) is used
    assert objections(seen, 2, peer_allowed=True) == []


def test_the_roles_module_utils_have_the_same_parser(role: Path) -> None:
    link = role / "module_utils" / "gpu_diag_nccl.py"
    assert link.resolve() == role / "files" / "gpu_diag" / "hostfacts" / "gpu_diag_nccl.py"
