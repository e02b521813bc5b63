"""The program that downloads, as a process with the hub's real client, against a hub on the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, Repository, serving

PROGRAM = Path(__file__).resolve().parents[3] / "roles/model_files/files/hub_pull.py"
NAME = "owner/small"
WEIGHTS = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 200_000 + os.urandom(100_000) for n in (1, 2)}
FILES = {
    **WEIGHTS,
    "config.json": b"{}",
    "sub/tokenizer.json": b"[1]",
    ".gitattributes": b"x",
    "old.bin": b"x" * 99,
}
PULLED = sorted([*WEIGHTS, "config.json", "sub/tokenizer.json"])


@dataclass
class Puller:
    """Runs the program; `folder` is kept from one run to the next."""

    hub: Hub
    folder: Path
    outputs: list[str] = field(default_factory=list)

    def __call__(self, token: str = "", **changes: Any) -> dict[str, Any]:
        jobs = self.folder / "job"
        jobs.mkdir(exist_ok=True)
        job = {
            "repository": NAME,
            "revision": "main",
            "endpoint": self.hub.endpoint,
            "only": [],
            "ignore": ["*.bin"],
            "xet": False,
            "stall_seconds": 60,
            "environment": {"HF_HOME": str(self.folder / "home")},
            "place": "/models/.pulling/small",
            "token": token,
            **changes,
        }
        (jobs / "job.json").write_text(json.dumps(job))
        command = [sys.executable, str(PROGRAM), str(jobs), str(self.folder / "pull")]
        (self.folder / "pull").mkdir(exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.outputs.append(done.stdout + done.stderr)
        assert not (jobs / "job.json").exists()
        outcome: dict[str, Any] = json.loads((jobs / "outcome.json").read_text())
        assert done.returncode == (0 if outcome["ok"] else 1)
        return outcome

    def refused(self, token: str = "", **changes: Any) -> str:
        """The sentence of a run that has to fail."""
        outcome = self(token, **changes)
        assert not outcome["ok"], outcome
        return str(outcome["sentence"])

    @property
    def arrived(self) -> dict[str, bytes]:
        """Files of the model that lie there, without the client's own."""
        model = self.folder / "pull/model"
        names = (path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
        return {name: (model / name).read_bytes() for name in names if not name.startswith(".cache/")}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one repository."""
    with serving() as server:
        server.repositories[NAME] = Repository(dict(FILES))
        yield server


@pytest.fixture
def puller(hub: Hub, tmp_path: Path) -> Puller:
    """The program with a folder of its own."""
    return Puller(hub, tmp_path)
