"""Starts stand-ins and routers as real processes, and talks to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.standin.ports import free_port

PATIENCE_SECONDS = 60.0
"""How long a test waits for what must come; a busy machine is slow, and that is no failure."""

HTTP = httpx.Client(
    verify=False,
    trust_env=False,
    limits=httpx.Limits(max_keepalive_connections=0),
    timeout=PATIENCE_SECONDS,
)
"""Reading the machine's certificates takes longer than a request here."""

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-tests"


def wait_until(holds: Callable[[], Any], seconds: float = PATIENCE_SECONDS, what: str = "it") -> Any:
    """Wait for a true value and return it; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)


async def until(holds: Callable[[], Any], seconds: float = PATIENCE_SECONDS, what: str = "it") -> Any:
    """The same, without stopping the event loop."""
    return await asyncio.to_thread(wait_until, holds, seconds, what)


def _stop(process: subprocess.Popen[bytes] | None, number: int) -> None:
    if process is not None and process.poll() is None:
        process.send_signal(number)
    if process is not None:
        process.wait(timeout=40)


@dataclass
class Engine:
    """A stand-in engine in a process of its own."""

    name: str = "text"
    model: str = "Stand-In-1B"
    task: str = "generate"
    dialect: str = "0.32.0"
    boot_seconds: float = 0.0
    device: str = "cpu:left"
    vision: bool = False
    with_launcher: bool = True
    token_file: Path | None = None
    """Given: it runs under the real launcher, which takes orders with this token."""
    port: int = field(default_factory=free_port)
    launcher_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self, ready: bool = True) -> Engine:
        """Start it; with `ready` wait until it answers."""
        command = [sys.executable, "-m", "tests.standin.server", "--port", str(self.port)]
        command += ["--model", self.model, "--task", self.task, "--dialect", self.dialect]
        command += ["--device", self.device, "--boot-seconds", str(self.boot_seconds)]
        command += ["--vision"] if self.vision else []
        if self.token_file is not None:
            command = [*self._launcher_command(self.token_file), *command]
        elif self.with_launcher:
            command += ["--launcher-port", str(self.launcher_port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if ready:
            wait_until(self.answers, what=f"engine {self.name}")
        return self

    def _launcher_command(self, token_file: Path) -> list[str]:
        token_file.parent.mkdir(parents=True, exist_ok=True)
        token_file.write_text("a-launcher-token\n")
        command = [sys.executable, str(ROOT / "roles/vllm_service/files/launcher.py"), "run"]
        command += ["--service", self.name, "--health", f"{self.url}/health", "--state-address", "127.0.0.1"]
        command += ["--state-port", str(self.launcher_port), "--token-file", str(token_file), "--"]
        return command

    def answers(self) -> bool:
        """Whether the engine is up."""
        try:
            return HTTP.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """SIGKILL; a launcher is asked, since its engine would outlive it outside a container."""
        _stop(self.process, signal.SIGKILL if self.token_file is None else signal.SIGTERM)

    def fault(self, **faults: Any) -> None:
        """Order faults."""
        assert HTTP.post(f"{self.url}/standin/faults", json=faults).status_code == 200

    def state(self) -> dict[str, Any]:
        """What it remembers."""
        return dict(HTTP.get(f"{self.url}/standin/state").json())

    def calls(self, path: str) -> list[str]:
        """The calls of paths that begin so, in order."""
        return [call["path"] for call in self.state()["calls"] if call["path"].startswith(path)]

    def served(self, path: str) -> list[str]:
        """The same without the router's own questions."""
        calls = [call for call in self.state()["calls"] if not call["canary"]]
        return [call["path"] for call in calls if call["path"].startswith(path)]

    def registry_entry(self, **changes: Any) -> dict[str, Any]:
        """The service as the registry describes it."""
        entry: dict[str, Any] = {
            "name": self.name,
            "model": self.model,
            "aliases": [f"{self.name}-alias"],
            "task": self.task,
            "base_url": self.url,
            "launcher_url": f"http://127.0.0.1:{self.launcher_port}" if self.with_launcher else None,
            "devices": [self.device],
            "definition": "0" * 64,
            "idle_sleep_seconds": 0,
            "idle_offload_seconds": 0,
            "pin": False,
            "allow_level_2": "always",
            "may_record_canary": True,
        }
        return {**entry, **changes}


@dataclass
class Router:
    """The router in a process of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ("-m", "wake_router")
    """What Python runs: the router, or a variant of it."""
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def register(self, *services: dict[str, Any]) -> None:
        """Write the registry."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"schema_version": 1, "instance": "test", "services": list(services)}
        (self.folder / "registry.json").write_text(json.dumps(document))
        (self.folder / "token").write_text(TOKEN)

    def plan_memory(self, *figures: tuple[str, str, int, int], total: int = 80 * 2**30) -> None:
        """Write the plan's figures: service, device, bytes awake and asleep; each device has `total`."""
        document = {
            "schema_version": 1,
            "devices": [
                {
                    "device": device,
                    "name": "gpu1" if device.startswith("GPU-") else device.removeprefix("cpu:"),
                    "kind": "cuda" if device.startswith("GPU-") else "cpu",
                    "total_bytes": total,
                    "limit_bytes": total * 88 // 100,
                }
                for device in dict.fromkeys(device for _, device, _, _ in figures)
            ],
            "shares": [
                {
                    "service": service,
                    "device": device,
                    "awake_bytes": awake,
                    "asleep_bytes": asleep,
                    "measured": False,
                }
                for service, device, awake, asleep in figures
            ],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "device-memory.json").write_text(json.dumps(document))

    def device_memory(self, device: str) -> dict[str, Any]:
        """What it says of a device's memory."""
        devices = HTTP.get(f"{self.admin}/admin/status").json()["device_memory"]
        return next(dict(each) for each in devices if each["device"] == device)

    def start(self) -> Router:
        """Start it and wait until it answers."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "roles/router/files"),
            "FRONTDOOR_REGISTRY": str(self.folder / "registry.json"),
            "FRONTDOOR_STATE": str(self.folder / "state"),
            "FRONTDOOR_ADMIN_TOKEN_FILE": str(self.folder / "token"),
            "FRONTDOOR_LAUNCHER_TOKENS": str(self.folder / "launchers"),
            "ROUTER_PUBLIC_ADDRESS": f"127.0.0.1:{self.port}",
            "ROUTER_ADMIN_ADDRESS": f"127.0.0.1:{self.admin_port}",
            "ROUTER_OBSERVE_INTERVAL": "0.05",
            **self.environment,
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program], env=environment, stdout=log, stderr=log
            )
        wait_until(self._answers, what="the router")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return HTTP.get(f"{self.admin}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def url(self) -> str:
        """The public surface."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        """The admin surface."""
        return f"http://127.0.0.1:{self.admin_port}"

    def stop(self) -> None:
        """SIGTERM, and wait."""
        _stop(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        _stop(self.process, signal.SIGKILL)

    def log(self) -> str:
        """Everything it has written."""
        return (self.folder / "log").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Its log lines of one kind."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == kind]

    def status(self, service: str) -> dict[str, Any]:
        """A service's status."""
        services = HTTP.get(f"{self.admin}/admin/status").json()["services"]
        return next(dict(each) for each in services if each["name"] == service)

    def wait_for_record(self, service: str, depth: str) -> None:
        """Wait until the disk says so: a wake serves before its end is written down."""
        path = self.folder / f"state/intents/{service}.json"

        def is_written() -> bool:
            record = json.loads(path.read_bytes()) if path.exists() else {}
            return record.get("depth") == depth and not record.get("open_step")

        wait_until(is_written, what=f"{service} is {depth} on the disk")

    def wait_for(self, service: str, depth: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a service is at a depth."""
        wait_until(lambda: self.status(service)["depth"] == depth, seconds, f"{service} {depth}")

    def order(
        self, path: str, timeout: float = PATIENCE_SECONDS, operator: str | None = None
    ) -> httpx.Response:
        """POST to the admin surface with the token, under a name or none."""
        headers = {"Authorization": f"Bearer {TOKEN}"} | ({"X-Operator": operator} if operator else {})
        return HTTP.post(f"{self.admin}/admin/{path}", headers=headers, timeout=timeout)

    def chat(self, model: str, timeout: float = PATIENCE_SECONDS, **fields: Any) -> httpx.Response:
        """Ask a chat model."""
        headers = fields.pop("headers", {})
        body = {"model": model, "messages": [{"role": "user", "content": "Capital of France?"}], **fields}
        return HTTP.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=timeout)
