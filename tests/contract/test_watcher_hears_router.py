"""The watcher of the diagnostics hears from a router which engine it distrusts, and marks its GPU suspect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.standin.processes import Engine, Router, wait_until

PACKAGE = Path(__file__).parents[2] / "roles" / "gpu_diag" / "files"
UUID, SLOT = "GPU-00000001-1111-2222-3333-444444444444", "0000:3d:00.0"
XML = f"<nvidia_smi_log><gpu id='00000000:3D:00.0'><uuid>{UUID}</uuid></gpu></nvidia_smi_log>"
GENEROUS_SECONDS = 90


@dataclass
class Watched:
    """A watcher's evidence folder, its kernel log, and the instance whose router it hears."""

    folder: Path
    root: Path
    processes: list[subprocess.Popen[str]]

    def start(self) -> None:
        """Start the watcher, and wait until it watches."""
        bin_ = self.folder / "bin"
        bin_.mkdir(exist_ok=True)
        (bin_ / "nvidia-smi").write_text(f'#!/bin/sh\necho "{XML}"\n')
        (bin_ / "nvidia-smi").chmod(0o755)
        (self.folder / "kmsg").touch()
        line = [sys.executable, "-m", "gpu_diag", "watch", "--evidence", str(self.folder / "evidence")]
        line += ["--kernel-log", str(self.folder / "kmsg"), "--router", str(self.root)]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PATH": f"{bin_}:{os.environ['PATH']}"}
        process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("watching ")

    def marks(self) -> list[dict[str, Any]]:
        """All marks of suspicion."""
        paths = sorted((self.folder / "evidence" / "suspect").glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def rules(self) -> set[tuple[str, str]]:
        """By which rule which GPU is suspect, once there is a mark."""
        wait_until(self.marks, GENEROUS_SECONDS, "a mark")
        return {(mark["rule"], mark["pci_address"]) for mark in self.marks()}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A watcher that ends with the test."""
    found = Watched(tmp_path, tmp_path / "instance", [])
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


@pytest.fixture
def router(routers: Callable[..., Router], watched: Watched) -> Router:
    """A router that looks often, and that the watcher can find."""
    made = routers(ROUTER_CORRUPTION_INTERVAL="0.2")
    (watched.root / "router").mkdir(parents=True)
    (watched.root / "router" / "router.env").write_text(f"ROUTER_ADMIN_ADDRESS=127.0.0.1:{made.admin_port}\n")
    return made


@pytest.fixture
def engine(engines: Callable[..., Engine], router: Router) -> Engine:
    """An awake engine on the GPU, that the router has seen booting."""
    planned = Engine(device=UUID)
    router.register(planned.registry_entry())
    router.start()
    started = engines(
        ready=False, boot_seconds=0.4, port=planned.port, launcher_port=planned.launcher_port, device=UUID
    )
    router.wait_for("text", "awake", GENEROUS_SECONDS)
    return started


def quarantined(router: Router) -> bool:
    return bool({"quarantined", "failed"} & set(router.status("text")["conditions"]))


def test_answers_with_nan_make_the_gpu_suspect(watched: Watched, router: Router, engine: Engine) -> None:
    watched.start()
    engine.fault(corrupted_requests=3)
    assert watched.rules() == {("engine_nan", SLOT)}
    assert quarantined(router)
    assert all(mark["boot_id"] and mark["sentence"] for mark in watched.marks())


def test_a_failed_canary_makes_the_gpu_suspect(watched: Watched, router: Router, engine: Engine) -> None:
    assert router.order("services/text/offload").status_code == 200
    watched.start()
    engine.fault(reload_keeps_garbage=True)
    assert router.chat("text").status_code == 503
    assert watched.rules() == {("engine_canary", SLOT)}


def test_what_happened_before_the_watcher_came_is_marked_too(
    watched: Watched, router: Router, engine: Engine
) -> None:
    engine.fault(corrupted_requests=3)
    wait_until(lambda: quarantined(router), GENEROUS_SECONDS, "quarantine")
    watched.start()
    assert ("engine_nan", SLOT) in watched.rules()


def test_an_engine_that_only_died_makes_nothing_suspect(
    watched: Watched, router: Router, engine: Engine
) -> None:
    watched.start()
    engine.kill()
    wait_until(lambda: router.status("text")["depth"] != "awake", GENEROUS_SECONDS, "the end of the engine")
    # A line of the kernel log comes later, and is marked all the same: the mark before it would be there.
    (watched.folder / "kmsg").write_text("NVRM: Xid (PCI:0000:3d:00): 31, pid=1\n")
    assert watched.rules() == {("xid_31", SLOT)}


def test_without_a_router_the_kernel_log_is_watched(watched: Watched) -> None:
    watched.start()
    (watched.folder / "kmsg").write_text("NVRM: Xid (PCI:0000:3d:00): 79, pid=1\n")
    assert watched.rules() == {("xid_79", SLOT)}
