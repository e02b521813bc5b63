"""The benchmark runs through and writes the figures that it promises, however large they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.standin.processes import ROOT

LOADS = {
    "requests_per_s": ["1 connections", "32 connections", "256 connections"],
    "latency_ms_p50": ["1 connections", "32 connections", "256 connections"],
    "latency_ms_p99": ["1 connections", "32 connections", "256 connections"],
    "chunks_per_s": ["1 streams", "64 streams", "256 streams"],
}


def test_a_glance(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.bench", "--glance", "--json", str(file)]
    # Without nginx, so that it is the same on every machine.
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "apt-get install nginx" in done.stdout
    figures = json.loads(file.read_text())
    assert all(set(each) == {"figure", "subject", "load", "value", "unit"} for each in figures)
    measured = {(each["figure"], each["subject"], each["load"]): each["value"] for each in figures}
    for figure, loads in LOADS.items():
        for load in loads:
            assert measured[figure, "upstream", load] > 0
            assert measured[figure, "router", load] > 0
    assert measured["wakes", "router", "1000 simultaneous requests"] == 1
    assert measured["memory_kib", "router", "per held request"] > 0
    assert measured["memory_kib", "router", "per open stream"] > 0
    assert any(each["figure"] == "wake_overhead_ms" for each in figures)
    assert len(done.stdout.splitlines()) > len(figures)


def test_box_knows_it(tmp_path: Path) -> None:
    """Dispatch alone: what `box` would run, with a virtual environment that needs no preparation."""
    box = tmp_path / "box"
    shutil.copy(ROOT / "box", box)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (tmp_path / "locks").mkdir()
    for file in (tmp_path / "locks/dev.txt", venv / "installed-dev"):
        file.write_text("")
    python = venv / "bin/python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH $*"\n')
    python.chmod(0o755)
    said = subprocess.run([box, "bench", "--quick"], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"{re.escape(str(tmp_path))} -m tests.bench --quick\n", said)
