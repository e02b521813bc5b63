"""The way between GPUs that NCCL's log shows, against the plan, and what becomes of the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils.frontdoor_box as machine
import ansible.module_utils.frontdoor_changeover as changing
import ansible.module_utils.frontdoor_converge as pure
import ansible.module_utils.frontdoor_transport as transport
import pytest

LOGS = Path(__file__).parents[1] / "gpu_diag" / "fixtures"
STAGED, PEER = transport.Wanted(2, False), transport.Wanted(2, True)
SILENT = "INFO: Application startup complete.\n"

# Stands for the docker command: a container whose log is a file, and a record of what was ordered.
DOCKER = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
with (folder / "orders").open("a") as orders:
    print(*sys.argv[1:], file=orders)
if sys.argv[1] == "container":
    print("2026-11-30T10:00:00.5Z")
if sys.argv[1] == "logs":
    if not (folder / "log").exists():
        sys.exit("Error: No such container")
    sys.stderr.write((folder / "log").read_text())
"""


def log(name: str) -> str:
    return (LOGS / f"nccl-{name}.log").read_text()


def test_the_staged_path_is_as_planned() -> None:
    finding = transport.judge(log("2.27-two-gpus-shared-memory"), STAGED)
    assert finding == transport.Finding(("SHM",))
    assert (transport.problem(finding), transport.warning(finding)) == (None, None)
    assert transport.words(finding) == "GPU to GPU via SHM"


def test_the_peer_path_is_taken_where_it_is_earned_and_nowhere_else() -> None:
    text = log("2.27-two-gpus-peer")
    assert transport.problem(transport.judge(text, PEER)) is None
    problem = transport.problem(transport.judge(text, STAGED)) or ""
    assert "from rank 0 to rank 1 via P2P/CUMEM, P2P/IPC, which the plan forbids" in problem
    assert "from rank 1 to rank 0 via P2P/CUMEM/read" in problem
    assert "engine:201:215 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM" in problem.splitlines()
    assert "deploy another image" in problem


def test_one_pair_among_others_is_named_with_its_line() -> None:
    finding = transport.judge(log("2.10-three-gpus-mixed"), transport.Wanted(3, False))
    assert finding.lines == ("box:77:91 [0] NCCL INFO Channel 00 : 0[3d000] -> 1[63000] via P2P/IPC",)
    assert finding.kinds == ("NET", "P2P", "SHM")


def test_multicast_is_shown_by_its_line() -> None:
    line = "h:1:1 [0] NCCL INFO NVLS comm 0x55984 headRank 2 nHeads 8 buffSize 4194304"
    finding = transport.judge(f"{log('2.27-two-gpus-shared-memory')}{line}\n", STAGED)
    assert finding.lines == (line,)
    assert "NCCL_NVLS_ENABLE=0" in (transport.problem(finding) or "")


def test_many_lines_are_counted_and_not_all_shown() -> None:
    problem = transport.problem(transport.judge(log("2.27-two-gpus-peer") * 3, STAGED)) or ""
    assert problem.count("via P2P/") == 2 + transport.LINES_SHOWN
    assert "and 5 more such line(s)" in problem


def test_silence_is_said_and_is_no_failure() -> None:
    finding = transport.judge(SILENT, STAGED)
    assert transport.problem(finding) is None
    assert "is not shown by its log" in (transport.warning(finding) or "")
    assert transport.words(finding) == "GPU to GPU: not shown"
    half = transport.judge(log("2.27-two-gpus-peer"), transport.Wanted(3, False))
    assert half.forbidden and half.not_shown == ("NCCL's log names no transport for rank 2 of 3.",)


def test_one_part_needs_no_way() -> None:
    finding = transport.judge("", transport.Wanted(1, False))
    assert (transport.problem(finding), transport.warning(finding)) == (None, None)


# ------------------------------------------------------------------------------------------------ the shell


@pytest.fixture
def changeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> changing.Changeover:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assignment = changing.Assignment(
        docker=machine.Docker("unix:///nowhere.sock"),
        desired=pure.Desired(project="p", instance="i", root="/r"),
        compose={},
        compose_path=tmp_path / "compose.yml",
        healthy_seconds=1,
        log_lines=1,
    )
    return changing.Changeover(assignment, changing.Outcome(), lambda path, content: None)


def orders(folder: Path) -> list[str]:
    path = folder / "orders"
    return path.read_text().splitlines() if path.exists() else []


def test_an_engine_on_a_forbidden_way_is_stopped_and_not_let_through(
    changeover: changing.Changeover, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(log("2.27-two-gpus-peer"))
    with pytest.raises(machine.ConvergeError, match=r"it was stopped: NCCL moves data from rank 0 to rank 1"):
        changeover.prove("text", "c1", STAGED)
    assert orders(tmp_path)[-2:] == ["logs --since 2026-11-30T10:00:00.5Z c1", "stop c1"]


@pytest.mark.parametrize(
    ("text", "wanted", "warns"),
    [
        (log("2.27-two-gpus-shared-memory"), STAGED, False),
        (log("2.27-two-gpus-peer"), PEER, False),
        (SILENT, STAGED, True),
    ],
)
def test_an_engine_on_its_way_goes_on(
    changeover: changing.Changeover, tmp_path: Path, text: str, wanted: Any, warns: bool
) -> None:
    (tmp_path / "log").write_text(text)
    changeover.prove("text", "c1", wanted)
    assert not any(order.startswith("stop") for order in orders(tmp_path))
    assert (transport.warning(changeover._outcome.seen["text"]) is not None) is warns


def test_an_engine_whose_log_cannot_be_read_is_not_proven(changeover: changing.Changeover) -> None:
    with pytest.raises(machine.ConvergeError, match="docker logs failed: Error: No such container"):
        changeover.prove("text", "c1", STAGED)


def test_nobody_looks_at_the_log_of_an_engine_without_nccl(
    changeover: changing.Changeover, tmp_path: Path
) -> None:
    changeover.prove("text", "c1", None)
    assert orders(tmp_path) == []


def test_the_modules_options_become_what_is_wanted() -> None:
    options = json.loads('[{"service": "text", "ranks": 2, "peer_allowed": false}]')
    assert transport.wanted_of(options) == {"text": STAGED}
