"""Memory of real processes, and what nvidia-smi says in its words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from frontdoor_calibration.meter import Meter, MeterError, descendants, used_by
from hypothesis import given
from hypothesis import strategies as st

MIB = 2**20
# A process with a child; the child holds 64 MiB that it has written to.
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c",
    "kept = bytearray(b'x') * (64 << 20); print('ready', flush=True); input()"], stdin=subprocess.PIPE)
input()
child.stdin.close()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[int]:
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate("\n")


def test_children_count_and_shared_pages_count_once(family: int) -> None:
    reading = Meter().read(family, [])
    assert 64 * MIB <= reading.host < 200 * MIB
    assert reading.available > 0
    assert reading.devices == {}


def test_a_process_that_is_gone_is_no_zero() -> None:
    with pytest.raises(MeterError, match="is it gone"):
        Meter().read(2**22 - 1, [])


@given(st.dictionaries(st.integers(2, 30), st.integers(1, 30)))
def test_a_family_is_closed_and_whole(parents: dict[int, int]) -> None:
    family = descendants(1, parents)
    assert 1 in family
    assert all(child in family for child, parent in parents.items() if parent in family)
    assert all(each == 1 or parents[each] in family for each in family)


LISTING = "100, GPU-1, 400\n101, GPU-1, 24\n101, GPU-2, 500\n7, GPU-1, 9000\n100, GPU-3, 1\n"


def test_only_the_engines_own_processes_count() -> None:
    assert used_by([100, 101], ["GPU-1", "GPU-2"], LISTING) == {"GPU-1": 424 * MIB, "GPU-2": 500 * MIB}


@pytest.mark.parametrize(
    ("listing", "part"),
    [
        ("", "no process of the engine on GPU-1"),
        ("7, GPU-1, 500\n", "no process of the engine on GPU-1"),
        ("100, GPU-1, [N/A]\n", r"doesn't say how much of GPU-1 a process holds \(\[N/A\]\)"),
        ("100\n", "no process of the engine"),
    ],
)
def test_what_nvidia_smi_does_not_say_is_no_zero(listing: str, part: str) -> None:
    with pytest.raises(MeterError, match=part):
        used_by([100], ["GPU-1"], listing)


def program(folder: Path, text: str) -> Meter:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Meter(nvidia_smi=(str(path),))


def test_names_are_nvidia_smis(tmp_path: Path) -> None:
    meter = program(tmp_path, "echo 'GPU-1, NVIDIA A800 80GB PCIe'")
    assert meter.gpu_names() == {"GPU-1": "NVIDIA A800 80GB PCIe"}


def test_a_driver_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="nvidia-smi failed: No devices were found"):
        program(tmp_path, "echo No devices were found; exit 6").gpu_names()
    with pytest.raises(MeterError, match="can't be run"):
        Meter(nvidia_smi=(str(tmp_path / "none"),)).gpu_names()
