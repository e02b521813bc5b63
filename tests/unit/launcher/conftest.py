"""Real launchers with real children; each test ends what it started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.ports import free_port

LAUNCHER = Path(__file__).parents[3] / "roles/vllm_service/files/launcher.py"
ENGINE = Path(__file__).parent / "engine.py"
PATIENCE_SECONDS = 60.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not come true within {seconds} s: {what}"
        time.sleep(0.02)


class RunningLauncher:
    """One launcher with the test engine as its child."""

    memory_cache_seconds = 2.1

    def __init__(
        self,
        folder: Path,
        name: str,
        devices: list[str],
        engine: list[str],
        prefix: list[str],
        token: str | None,
        promises: list[str],
    ) -> None:
        self.port = free_port()
        self.state_port = free_port()
        self.engine_log = folder / f"{name}.engine.log"
        self.log = folder / f"{name}.launcher.log"
        locks = folder / "locks"
        locks.mkdir(exist_ok=True)
        command = [*prefix, sys.executable, str(LAUNCHER), "run", "--service", name, "--locks", str(locks)]
        for device in devices:
            command += ["--device", device]
        command += ["--health", f"http://127.0.0.1:{self.port}/health"]
        command += ["--state-address", "127.0.0.1", "--state-port", str(self.state_port)]
        if token is not None:
            (folder / "token").write_text(f"{token}\n")
            command += ["--token-file", str(folder / "token")]
        command += [*promises, "--"]
        command += [sys.executable, str(ENGINE), str(self.port), "--log", str(self.engine_log), *engine]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def ask(self, path: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.state_port}{path}", timeout=seconds) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def state(self) -> dict[str, Any]:
        return self.ask("/state", 5)

    def memory(self) -> dict[str, Any]:
        """What it measures, once the last answer is too old to be given again."""
        time.sleep(self.memory_cache_seconds)
        return self.ask("/memory")

    def phase(self) -> str:
        try:
            return str(self.state()["phase"])
        except OSError:
            return "not yet there"

    def wait_for_phase(self, phase: str) -> None:
        wait_until(lambda: self.phase() == phase, f"{phase}; {self.log.read_text()}")

    def engine_lines(self, word: str) -> list[list[str]]:
        lines = self.engine_log.read_text().splitlines() if self.engine_log.exists() else []
        return [line.split() for line in lines if line.split()[1] == word]

    def wait_for_engine(self, word: str) -> list[str]:
        wait_until(lambda: self.engine_lines(word), f"{word} in the engine's log; {self.log.read_text()}")
        return self.engine_lines(word)[0]

    def end(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(timeout=seconds)


Start = Callable[..., RunningLauncher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[RunningLauncher] = []

    def start_one(
        name: str = "text",
        devices: list[str] | None = None,
        engine: list[str] | None = None,
        prefix: list[str] | None = None,
        token: str | None = None,
        promises: list[str] | None = None,
    ) -> RunningLauncher:
        launcher = RunningLauncher(
            tmp_path, name, devices or [], engine or [], prefix or [], token, promises or []
        )
        running.append(launcher)
        return launcher

    yield start_one
    for launcher in running:
        if launcher.process.poll() is None:
            launcher.process.terminate()
            try:
                launcher.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                launcher.process.kill()
                launcher.process.wait(timeout=5)
