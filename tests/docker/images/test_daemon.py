"""A daemon of its own: started directly, found again, stopped by its own pid file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.images.conftest import Run


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path: a socket's may not be longer than 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="images-"))
    yield folder
    data = str(folder / "data")
    if any(line.split()[1] == data for line in Path("/proc/mounts").read_text().splitlines()):
        subprocess.run(["umount", data], check=True)
    shutil.rmtree(folder)


def command_line(pid: int) -> bytes:
    """Empty for a process that has ended, also while nobody has reaped it yet."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def arguments(place: Path, *options: str) -> dict[str, Any]:
    """A daemon in a network of its own: two in one network fight over bridge and packet filter."""
    return {
        "docker_host": f"unix://{place}/docker.sock",
        "data_root": f"{place}/data",
        "exec_root": f"{place}/exec",
        "pid_file": f"{place}/docker.pid",
        "log_file": f"{place}/docker.log",
        "options": list(options),
        "own_network": True,
    }


def test_a_daemon_is_started_once_and_stopped_once(place: Path, run: Run) -> None:
    asked = arguments(place)
    assert run("container_engine_daemon", check_mode=True, **asked)["changed"]
    assert not (place / "docker.sock").exists()
    started = run("container_engine_daemon", **asked)
    try:
        assert (started.get("msg"), started["changed"], started["way"]) == (None, True, "directly")
        assert not run("container_engine_daemon", **asked)["changed"]
        pid = int((place / "docker.pid").read_text())
        assert b"dockerd" in command_line(pid)
    finally:
        stopped = run("container_engine_daemon", **asked, state="stopped")
    assert stopped["changed"]
    assert command_line(pid) == b""
    assert not run("container_engine_daemon", **asked, state="stopped")["changed"]


def test_a_daemon_that_does_not_come_up_shows_the_end_of_its_log(place: Path, run: Run) -> None:
    answer = run("container_engine_daemon", **arguments(place, "--storage-driver=nosuchdriver"))
    assert answer["failed"]
    assert f"{place}/docker.log" in answer["msg"]
    assert "ended with code 1" in answer["msg"] and "driver not supported" in answer["msg"]


def test_what_is_there_is_found_and_judged(run: Run) -> None:
    nowhere = {"docker_host": "unix:///nonexistent/docker.sock", "wheel_machines": {"x86_64": "wheel"}}
    answer = run("container_engine_facts", **nowhere, install=False)
    assert not answer["failed"], answer["msg"]
    assert answer["decision"]["start"]
    assert answer["found"]["daemon"] is None and "/nonexistent/docker.sock" in answer["found"]["daemon_error"]
    remote = {**nowhere, "docker_host": "tcp://127.0.0.1:9"}
    refused = run("container_engine_facts", **remote, install=True)
    assert refused["failed"] and "container_engine_docker_host" in refused["msg"]
