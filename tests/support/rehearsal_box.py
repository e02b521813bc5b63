"""The rehearsal box as the end-to-end tests handle it: commands, containers, the admin listener."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
INSTANCE = "rehearsal"
ROOT = Path("/opt/vllm-frontdoor") / INSTANCE
STATE = Path("/var/lib/vllm-frontdoor") / INSTANCE
PORT = 20000 + 100 * (zlib.crc32(INSTANCE.encode()) % 200)
ENDPOINT = f"http://127.0.0.1:{PORT}"
ADMIN = f"http://127.0.0.1:{PORT + 10}"
COMMAND_TIMEOUT_SECONDS = 1800
CHANGE = re.compile(
    r"^\s+(?:msg: )?'?((?:container|directory|file|leftover|network|registry|secret) \S+: .*?)'?$",
    re.MULTILINE,
)
TASK = re.compile(r"^TASK \[(.+?)\] \*+$")


@dataclass(frozen=True)
class Run:
    """What a `./box` command printed, and how it ended."""

    status: int
    output: str
    seconds: float

    @property
    def changed(self) -> int:
        """The number of changed tasks, by Ansible's own recap."""
        (count,) = re.findall(r"^localhost .*\bchanged=(\d+)", self.output, re.MULTILINE)
        return int(count)

    @property
    def changed_tasks(self) -> list[str]:
        """Names of the tasks that reported a change, in order."""
        changed, task = [], ""
        for line in self.output.splitlines():
            if match := TASK.match(line):
                task = match[1]
            elif line.startswith("changed: ["):
                changed.append(task)
        return changed

    @property
    def changes(self) -> list[str]:
        """The sentences that say what was (or, with --check, would be) changed on the box, sorted."""
        return sorted(CHANGE.findall(self.output))


class Box:
    """A clean copy of the repository, in which `./box` commands are run as a user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find the tests' own Docker daemon and the user's caches."""
        return {name: os.environ[name] for name in ("DOCKER_HOST", "HOME") if name in os.environ}

    def run(self, *arguments: str, **environment: str) -> Run:
        """Run `./box ARGUMENTS`; its output may never hold a Python traceback."""
        start = time.monotonic()
        result = subprocess.run(
            ["./box", *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
        )
        run = Run(result.returncode, result.stdout, time.monotonic() - start)
        print(f"--- ./box {' '.join(arguments)}: status {run.status} in {run.seconds:.0f} s\n{run.output}")
        assert "Traceback (most recent call last)" not in run.output, run.output
        return run

    def succeed(self, *arguments: str) -> Run:
        """Run a command that must succeed."""
        run = self.run(*arguments)
        assert run.status == 0, run.output
        return run

    def refuse(self, *arguments: str, **environment: str) -> Run:
        """Run a command that must fail."""
        run = self.run(*arguments, **environment)
        assert run.status != 0, run.output
        return run


def docker(*arguments: str) -> str:
    """Output of a docker command on the tests' own daemon."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def container_name(service: str) -> str:
    """The name of a service's container, or of the router's."""
    return f"vllm-frontdoor-{INSTANCE}-{service}"


def container_ids() -> dict[str, str]:
    """Every container of the instance by name."""
    listing = docker(
        "ps", "--no-trunc", "--all", "--filter", f"label=vllm-frontdoor.instance={INSTANCE}",
        "--format", "{{.Names}} {{.ID}}",
    )  # fmt: skip
    return dict(line.split() for line in listing.splitlines())


def admin(path: str, body: dict[str, Any] | None = None, method: str = "POST") -> dict[str, Any]:
    """An order or a question to the router's admin listener, with the operator's token."""
    token = (ROOT / "secrets" / "admin-token").read_text().strip()
    request = urllib.request.Request(
        ADMIN + path,
        data=json.dumps(body or {}).encode() if method == "POST" else None,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def service_status(name: str) -> dict[str, Any]:
    """What the router says of one service."""
    services = admin("/admin/status", method="GET")["services"]
    (service,) = (service for service in services if service["name"] == name)
    return dict(service)


def metric(name: str, **labels: str) -> float:
    """The sum of a metric of the router over the series that carry the labels given."""
    with urllib.request.urlopen(f"{ADMIN}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    series = [line for line in lines if re.match(rf"{name}(\{{|\s)", line)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in series if all(label in line for label in wanted))


def container_names_on_default_daemon() -> list[str]:
    """Names of rehearsal containers that hold its ports already, on whatever daemon the user runs."""
    with_default = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
    result = subprocess.run(
        ["docker", "ps", "--filter", f"label=vllm-frontdoor.instance={INSTANCE}", "--format", "{{.Names}}"],
        env=with_default, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.stdout.split()


@dataclass(frozen=True)
class Deployed:
    """The deployed rehearsal, with what was predicted before and what the first run printed."""

    box: Box
    predicted: Run
    first: Run
