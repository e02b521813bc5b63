"""What the launcher measures: of real processes, and of GPUs as nvidia-smi tells it."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningLauncher, Start, wait_until
from .test_decisions import launcher
from .test_processes import impatient, order, process_state, wait_for_another

MIB = 2**20
GPU, OTHER = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001"


# ---- what is read


def test_a_programs_name_does_not_hide_its_parent() -> None:
    assert launcher.parent_of("12 (a) b) c) S 7 12 12 0 -1") == 7


def test_what_is_shared_counts_by_its_share_and_what_is_swapped_out_counts() -> None:
    rollup = (
        "55-7f ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 100 kB\nPss_Anon: 90 kB\nSwapPss: 8 kB\n"
    )
    assert launcher.resident_bytes(rollup) == 108 * 1024


def test_only_what_came_of_a_process_is_its_own() -> None:
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 21: 20, 30: 0}
    assert launcher.descendants(10, parents) == {11, 12}
    assert launcher.descendants(1, parents) == {10, 11, 12, 20, 21}
    assert launcher.descendants(99, parents) == set()
    assert launcher.descendants(10, {10: 11, 11: 10}) == {10, 11}, "read while numbers were reused"


@pytest.mark.parametrize(
    ("listing", "found"),
    [
        (f"{GPU}, 71234, 81920\n{OTHER}, 1, 81920\n", {GPU: (71234 * MIB, 81920 * MIB)}),
        (f"{GPU},0,81920", {GPU: (0, 81920 * MIB)}),
        (f"{GPU}, [N/A], 81920", {}),
        (f"{GPU}, [Insufficient Permissions], [Insufficient Permissions]", {}),
        (f"{GPU}, 12", {}),
        (f"{GPU}, -1, 81920", {}),
        ("Failed to initialize NVML: Driver/library version mismatch", {}),
        ("No devices were found", {}),
        ("", {}),
    ],
)
def test_only_plain_figures_of_its_own_gpus_count(listing: str, found: dict[str, tuple[int, int]]) -> None:
    assert launcher.gpu_memory(listing, (GPU,)) == found


# ---- real processes


@pytest.mark.parametrize("orphaned", [[], ["--orphaned"]])
def test_it_measures_the_engines_processes_and_no_others(start: Start, orphaned: list[str]) -> None:
    """An orphan of the engine is still the engine's."""
    ballast = bytearray(b"x") * (300 * MIB)  # of this process, which is none of the engine's
    one = start(engine=["--hold", "100", *orphaned])
    one.wait_for_phase("healthy")
    wait_until(lambda: one.memory()["resident_bytes"] > 100 * MIB, "the held memory is seen")
    measured = one.memory()
    assert 100 * MIB < measured["resident_bytes"] < 250 * MIB
    assert (measured["devices"], measured["problems"]) == ({}, [])
    assert (measured["schema_version"], measured["service"]) == (1, "text")
    del ballast
    os.kill(int(one.wait_for_engine("holder")[2]), signal.SIGKILL)
    wait_until(lambda: one.memory()["resident_bytes"] < 100 * MIB, "the memory is gone")


def test_who_asks_at_once_gets_the_same_answer(start: Start) -> None:
    one = start()
    one.wait_for_phase("healthy")
    first, second = one.ask("/memory"), one.ask("/memory")
    assert first["resident_bytes"] == second["resident_bytes"] > 0
    assert second["age_seconds"] >= first["age_seconds"] >= 0


def test_it_measures_without_any_capability(start: Start) -> None:
    """As in the engine's container, which has none."""
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    one = start(engine=["--hold", "50"], prefix=without)
    one.wait_for_phase("healthy")
    wait_until(lambda: (one.memory()["resident_bytes"] or 0) > 50 * MIB, "the held memory is seen")


# ---- GPUs


def nvidia_smi(folder: Path, script: str) -> list[str]:
    """A prefix with which a program finds this nvidia-smi."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ["env", f"PATH={program.parent}:{os.environ['PATH']}"]


def with_gpu(start: Start, folder: Path, script: str, **more: Any) -> RunningLauncher:
    one = start(devices=[GPU], prefix=nvidia_smi(folder, script), **more)
    one.wait_for_phase("healthy")
    return one


def test_a_gpus_figures_come_with_the_processes(start: Start, tmp_path: Path) -> None:
    said = tmp_path / "said"
    one = with_gpu(start, tmp_path, f'echo "$@" > {said}; echo "{GPU}, 1000, 81920"; echo "{OTHER}, 5, 9"')
    measured = one.memory()
    assert measured["devices"] == {GPU: {"used_bytes": 1000 * MIB, "total_bytes": 81920 * MIB}}
    assert measured["resident_bytes"] > 0
    assert measured["problems"] == []
    assert said.read_text() == ("--query-gpu=uuid,memory.used,memory.total --format=csv,noheader,nounits\n")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", f"nvidia-smi does not tell .* {GPU}"),
        (f"echo '{OTHER}, 5, 9'", f"nvidia-smi does not tell what is used of {GPU}"),
    ],
)
def test_what_nvidia_smi_does_not_say_is_unknown(
    start: Start, tmp_path: Path, script: str, problem: str
) -> None:
    measured = with_gpu(start, tmp_path, script).memory()
    assert measured["devices"] == {}
    (told,) = measured["problems"]
    assert re.match(problem, told)
    assert measured["resident_bytes"] > 0


def test_without_nvidia_smi_a_gpu_is_unknown(start: Start, tmp_path: Path) -> None:
    one = start(devices=[GPU], prefix=["env", f"PATH={tmp_path}"])
    one.wait_for_phase("healthy")
    measured = one.memory()
    assert measured["problems"] == ["nvidia-smi is not in the container"]
    assert measured["resident_bytes"] > 0


def test_a_hanging_nvidia_smi_holds_nothing_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(tmp_path, monkeypatch, "NVIDIA_SMI_SECONDS = 10.0", "NVIDIA_SMI_SECONDS = 3.0")
    pid = tmp_path / "pid"
    one = with_gpu(start, tmp_path, f"echo $$ > {pid}; exec sleep 600", token="secret")
    measured = one.memory()
    assert measured["problems"] == ["nvidia-smi does not answer within 3 s"]
    assert measured["resident_bytes"] > 0
    wait_until(lambda: process_state(int(pid.read_text())) is None, "it was killed and reaped")
    assert one.phase() == "healthy"
    first = pid.read_text()
    assert one.memory()["problems"] == ["nvidia-smi does not answer within 3 s"]
    assert pid.read_text() != first, "it was tried again"
    one.process.terminate()
    assert one.end() == 0


def test_a_restart_of_the_engine_leaves_nvidia_smi_alone(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(tmp_path, monkeypatch, "NVIDIA_SMI_SECONDS = 10.0", "NVIDIA_SMI_SECONDS = 100.0")
    asked, go = tmp_path / "asked", tmp_path / "go"
    script = f'touch {asked}; while [ ! -e {go} ]; do sleep 0.05; done; echo "{GPU}, 1000, 81920"'
    one = with_gpu(start, tmp_path, script, token="secret")
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(one.memory()))
    asking.start()
    wait_until(asked.exists, "nvidia-smi runs")
    before = one.state()["incarnation"]
    assert order(one, "secret", before)[0] == 202
    wait_for_another(one, before)
    assert "left running" not in one.log.read_text()
    go.touch()
    asking.join()
    assert answers[0]["devices"] == {GPU: {"used_bytes": 1000 * MIB, "total_bytes": 81920 * MIB}}
