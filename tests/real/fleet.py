"""Real engines in containers, started as the plan renders the rehearsal, and a router that saw them boot.

What the plan renders is read from the golden files; only the image, the names, the mounts and the network are
others. So the flags, the environment, the launcher and the limits are those of a deployed engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.standin.ports import free_port
from tests.standin.processes import HTTP, ROOT, Router, wait_until

RENDERED = ROOT / "tests/golden/rehearsal/engines"
LAUNCHER = ROOT / "roles/vllm_service/files"
MODELS = Path(os.environ.get("FRONTDOOR_MODELS", "/var/lib/vllm-frontdoor/models"))
BOOT_SECONDS = 900
"""Until both engines answer, on a slow machine that does other things."""
CALL_SECONDS = 300

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLEARED = {"schema_version": 1, "refused": {}, "control": None}

EXTRA_ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
"""Only with it does vLLM keep answers for `GET /v1/responses/{id}` (vLLM 0.27.1, vLLM 0.32.0)."""


def docker(*arguments: str) -> str:
    """What `docker` prints; fails with its own complaint."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


@dataclass
class RealEngine:
    """A vLLM server in a container, behind its launcher. Memory is in bytes."""

    name: str
    model: str
    task: str
    device: str
    container: str
    port: int = field(default_factory=free_port)
    launcher_port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def launcher_url(self) -> str:
        """Where its launcher tells its state."""
        return f"http://127.0.0.1:{self.launcher_port}"

    def registry_entry(self, **changes: Any) -> dict[str, Any]:
        """The service as the registry describes it."""
        entry: dict[str, Any] = {
            "name": self.name,
            "model": self.model,
            "aliases": [f"{self.name}-alias"],
            "task": self.task,
            "base_url": self.url,
            "launcher_url": self.launcher_url,
            "devices": [self.device],
            "definition": "0" * 64,
            "idle_sleep_seconds": 0,
            "idle_offload_seconds": 0,
            "pin": False,
            "allow_level_2": "always",
            "may_record_canary": True,
        }
        return {**entry, **changes}

    def healthy(self) -> bool:
        """Whether it answers; fails when its container has ended."""
        running = docker("inspect", "--format={{.State.Running}}", self.container)
        assert running == "true", f"{self.container} ended:\n{self.log()[-4000:]}"
        try:
            return HTTP.get(f"{self.url}/health", timeout=10).is_success
        except httpx.TransportError:
            return False

    def version(self) -> str:
        """What `/version` says."""
        return str(HTTP.get(f"{self.url}/version", timeout=CALL_SECONDS).json()["version"])

    def incarnation(self) -> str:
        """The launcher's id of the running process."""
        return str(HTTP.get(f"{self.launcher_url}/state", timeout=CALL_SECONDS).json()["incarnation"])

    def processes(self) -> list[int]:
        """Ids of all its processes, as the machine sees them."""
        return [int(line) for line in docker("top", self.container, "-eo", "pid").splitlines()[1:]]

    def memory(self) -> int:
        """Its share of the memory (PSS) by the kernel's books: of pages used by several, its part."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        return 1024 * sum(
            int(size) for text in rollups for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        )

    def log(self) -> str:
        """Everything it has written."""
        return subprocess.run(
            ["docker", "logs", self.container],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        ).stdout  # fmt: skip


@dataclass
class Fleet:
    """The rehearsal's two engines on one image."""

    image: str
    folder: Path
    project: str = field(default_factory=lambda: f"frontdoor-real-{uuid.uuid4().hex[:8]}")
    engines: dict[str, RealEngine] = field(default_factory=dict)

    @property
    def compose_file(self) -> Path:
        """What Compose is given."""
        return self.folder / "compose.yml"

    @property
    def clearance_file(self) -> Path:
        """The word that this boot's hardware was tested: these engines start on it as it is."""
        return self.folder / "clearance.json"

    def up(self) -> None:
        """Create and start the containers; doesn't wait for the engines."""
        rendered = yaml.safe_load((RENDERED / "compose.yml").read_text())["services"]
        self.engines = {name: self._engine(name, service) for name, service in rendered.items()}
        document = {
            "name": self.project,
            "services": {name: self._service(name, service) for name, service in rendered.items()},
            "networks": {"engines": {"name": self.project}},
        }
        self.compose_file.write_text(yaml.safe_dump(document))
        self.clearance_file.write_text(json.dumps(CLEARED | {"boot_id": BOOT_ID.read_text().strip()}))
        self._compose("up", "--detach")

    def wait(self) -> None:
        """Wait until all engines answer."""
        for engine in self.engines.values():
            wait_until(engine.healthy, BOOT_SECONDS, f"{engine.container} answers")

    def down(self) -> None:
        """Remove everything."""
        self._compose("down", "--volumes", "--timeout", "10")

    def _compose(self, *arguments: str) -> None:
        docker("compose", "--file", str(self.compose_file), *arguments)

    def _engine(self, name: str, service: dict[str, Any]) -> RealEngine:
        model = _after("--served-model-name", service["command"])
        device = _after("--device", service["entrypoint"])
        task = "embed" if "--runner" in service["command"] else "generate"
        return RealEngine(name, model, task, device, f"{self.project}-{name}")

    def _service(self, name: str, rendered: dict[str, Any]) -> dict[str, Any]:
        kept = ("entrypoint", "command", "cpuset", "shm_size", "cap_drop", "security_opt", "restart")
        engine = self.engines[name]
        environment = dict(
            line.split("=", 1) for line in (RENDERED / f"{name}.env").read_text().splitlines() if line
        )
        return {
            **{key: rendered[key] for key in kept},
            "image": self.image,
            "pull_policy": "never",
            "container_name": engine.container,
            "environment": {**environment, **EXTRA_ENVIRONMENT},
            "ports": [f"127.0.0.1:{engine.port}:8000", f"127.0.0.1:{engine.launcher_port}:9000"],
            "volumes": [
                f"{MODELS / engine.model}:/models/{engine.model}:ro",
                f"{LAUNCHER}:/launcher:ro",
                f"{self.clearance_file}:/clearance/clearance.json:ro",
            ],
            "tmpfs": ["/locks"],
            "networks": ["engines"],
        }


def _after(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


def router_in(folder: Path, entries: Iterable[dict[str, Any]], *program: str, **environment: str) -> Router:
    """A router, not yet started, that knows these services. `program` is run in place of the router's own."""
    patient = {"ROUTER_HOLD_SLEEPING": "300", "ROUTER_HOLD_OFFLOADED": "300"}
    router = Router(folder, {**patient, **environment})
    if program:
        router.program = program
    router.register(*entries)
    return router


def memory_of(router: Router, service: str) -> dict[str, Any]:
    """What a router has learned about a service."""
    return dict(json.loads((router.folder / f"state/memory/{service}.json").read_text()))
