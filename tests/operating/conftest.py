"""A front door for the operator's tools: a real router before stand-ins, laid out as the roles lay it out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from router_log import assert_sound
from vllmctl_bundle import bundle

from tests.standin.processes import ROOT, TOKEN, Engine, Router

INSTANCE = "test"
VLLMCTL = ROOT / "roles" / "router" / "files" / "vllmctl"
BOX_EVIDENCE = ROOT / "tests/unit/gpu_diag/fixtures/original-box"
SECONDS = 120
GIB = 2**30
GPU = "GPU-00000000-0000-4000-8000-000000000000"
"""The second engine's device; the first one's is a part of the processor."""


@dataclass
class Frontdoor:
    """One router with two engines, and the folders that `vllmctl` reads."""

    folder: Path
    router: Router
    text: Engine
    embed: Engine
    program: Path

    @property
    def environment(self) -> dict[str, str]:
        """Where the program finds the instance."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "FRONTDOOR_ROOT": str(self.folder / "opt"),
            "FRONTDOOR_STATE_ROOT": str(self.folder / "var"),
        }

    @property
    def root(self) -> Path:
        """The instance's folder."""
        return self.folder / "opt" / INSTANCE

    def run(self, *words: str, typed: str | None = None, **environment: str) -> Outcome:
        """Run `vllmctl WORDS`; no traceback may ever be seen."""
        result = subprocess.run(
            [self.program, *words],
            env=self.environment | environment,
            input=typed,
            stdin=subprocess.DEVNULL if typed is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        outcome = Outcome(result.returncode, result.stdout, result.stderr)
        print(f"--- vllmctl {' '.join(words)}: {outcome.status}\n{outcome.out}{outcome.err}")
        assert "Traceback" not in outcome.out + outcome.err
        return outcome

    def succeed(self, *words: str, typed: str | None = None) -> str:
        """Run a command that must work; returns what it printed."""
        outcome = self.run(*words, typed=typed)
        assert outcome.status == 0, outcome
        assert outcome.err == "", outcome
        return outcome.out

    def json(self, *words: str) -> Any:
        """The same, whose output is one JSON document."""
        return json.loads(self.succeed(*words, "--json"))

    def fail(self, *words: str, status: int = 1, **environment: str) -> str:
        """Run a command that must fail with one sentence; returns it."""
        outcome = self.run(*words, **environment)
        assert outcome.status == status, outcome
        assert outcome.out == ""
        (sentence,) = outcome.err.splitlines()
        assert sentence.startswith("vllmctl: ")
        return sentence


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vllmctl as the role makes it: one file of the package and its locked wheels."""
    folder = tmp_path_factory.mktemp("vllmctl")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    subprocess.run(
        [
            *pip,
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--dest",
            folder,
            "-r",
            ROOT / "locks/vllmctl.txt",
        ],
        check=True,
    )
    wheels = sorted(folder.glob("*.whl"))
    path = folder / "bin" / "vllmctl"
    path.parent.mkdir()
    path.write_bytes(bundle(VLLMCTL, wheels))
    path.chmod(0o755)
    assert bundle(VLLMCTL, reversed(wheels)) == path.read_bytes(), "the same input, other bytes"
    return path


@pytest.fixture(scope="module")
def frontdoor(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Frontdoor]:
    """Started once for a module; every test leaves it usable."""
    folder = tmp_path_factory.mktemp("box")
    text = Engine(token_file=folder / "router" / "launchers" / "text" / "token").start()
    embed = Engine(name="embed", model="Stand-In-Embed", task="embed", device=GPU).start()
    shutil.copytree(BOX_EVIDENCE, folder / "var" / INSTANCE / "evidence")
    router = Router(
        folder / "router",
        {
            "FRONTDOOR_EVIDENCE": str(folder / "var" / INSTANCE / "evidence"),
            "ROUTER_HELD_MAX": "8",
            "ROUTER_MEMORY_INTERVAL": "1",
        },
    )
    router.register(text.registry_entry(), embed.registry_entry())
    router.plan_memory(("text", "cpu:left", 2 * GIB, 2 * GIB), ("embed", GPU, 9 * GIB, 2 * GIB))
    started = Frontdoor(folder, router, text, embed, program)
    _lay_out(started)
    try:
        router.start()
        for name in ("text", "embed"):
            assert router.order(f"services/{name}/wake", 60).status_code == 200, router.log()
        yield started
    finally:
        router.kill()
        text.kill()
        embed.kill()
    assert_sound(router.log())


def _lay_out(frontdoor: Frontdoor) -> None:
    root, router = frontdoor.root, frontdoor.router
    for name in ("router", "secrets", "registry"):
        (root / name).mkdir(parents=True)
    (root / "router" / "router.env").write_text(
        f"ROUTER_ADMIN_ADDRESS=127.0.0.1:{router.admin_port}\nROUTER_PUBLIC_ADDRESS=0.0.0.0:{router.port}\n"
    )
    (root / "secrets" / "admin-token").write_text(TOKEN + "\n")
    shutil.copy(router.folder / "registry.json", root / "registry" / "registry.json")
    model = frontdoor.folder / "var" / "models" / "Stand-In-1B"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"\0" * 3_000_000)
