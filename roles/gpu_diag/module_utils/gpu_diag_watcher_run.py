"""Keep the watcher running: as a unit where systemd runs, else as a plain process with a record of itself."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .gpu_diag_commands import run_bounded

_SYSTEMCTL_SECONDS = 60.0
_STOP_SECONDS = 10.0
_START_SECONDS = 60.0
# What the watcher says once it has opened the kernel log (gpu_diag.watch).
_WATCHING = "watching "


class WatcherError(Exception):
    """The watcher can't be kept running; the message is a sentence."""


@dataclass(frozen=True)
class Watcher:
    """What runs: the interpreter, the package, the evidence folder and the name of the unit."""

    name: str
    python: str
    package: str
    evidence: str
    router: str = ""
    kernel_log: str = "/dev/kmsg"
    systemctl: Sequence[str] = ("systemctl",)
    units: str = "/etc/systemd/system"
    run_systemd: str = "/run/systemd/system"

    def command(self) -> list[str]:
        """The watcher's command."""
        log = ["--kernel-log", self.kernel_log]
        router = ["--router", self.router] if self.router else []
        return [self.python, "-m", "gpu_diag", "watch", "--evidence", self.evidence, *log, *router]

    def version(self) -> str:
        """A digest of the package and the command: others need another process."""
        digest = hashlib.sha256(" ".join(self.command()).encode())
        for path in sorted(Path(self.package).rglob("*.py")):
            digest.update(f"{path.relative_to(self.package)}\n".encode() + path.read_bytes())
        return digest.hexdigest()[:16]

    def unit(self) -> str:
        """The text of the unit. A status of 3 means that it can't run at all: it is not tried again."""
        return f"""[Unit]
Description=Marks evidence about GPUs suspect when the kernel log says so ({self.name})
# Package {self.version()}

[Service]
Environment=PYTHONPATH={self.package} PYTHONDONTWRITEBYTECODE=1
ExecStartPre=/bin/mkdir -p {self.evidence}
ExecStart={" ".join(self.command())}
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=3
NoNewPrivileges=true
ProtectHome=read-only
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


def keep(watcher: Watcher, check_mode: bool) -> list[str]:
    """Make sure that it runs; sentences on what was (in check mode, would be) done. Raises WatcherError."""
    try:
        if Path(watcher.run_systemd).is_dir():
            return _keep_unit(watcher, check_mode)
        return _keep_process(watcher, check_mode)
    except OSError as error:
        raise WatcherError(
            f"the watcher {watcher.name} can't be set up ({error.strerror}: {error.filename}): "
            "the play needs `become: true`"
        ) from error


def _keep_unit(watcher: Watcher, check_mode: bool) -> list[str]:
    path = Path(watcher.units) / f"{watcher.name}.service"
    text = watcher.unit()
    missing = not path.is_file()
    differs = missing or path.read_text() != text
    runs = (
        not differs
        and run_bounded([*watcher.systemctl, "is-active", path.name], _SYSTEMCTL_SECONDS).problem is None
    )
    if runs:
        return []
    if not check_mode:
        path.write_text(text)
        for arguments in (["daemon-reload"], ["enable", path.name], ["restart", path.name]):
            _systemctl(watcher, *arguments)
    if missing:
        return [f"unit {path.name}: missing, written and started"]
    what = "content differs, written and restarted" if differs else "not running, started"
    return [f"unit {path.name}: {what}"]


def _systemctl(watcher: Watcher, *arguments: str) -> None:
    outcome = run_bounded([*watcher.systemctl, *arguments], _SYSTEMCTL_SECONDS)
    if outcome.problem is not None:
        raise WatcherError(f"the unit of {watcher.name} can't be started or stopped: {outcome.problem}")


def _keep_process(watcher: Watcher, check_mode: bool) -> list[str]:
    record = _read_record(watcher)
    alive = record is not None and _start_of(int(record["pid"])) == record["started"]
    if record is not None and alive and record["version"] == watcher.version():
        return []
    if not check_mode:
        if record is not None and alive:
            _stop(int(record["pid"]))
        _start(watcher)
    why = "package or command differs, restarted" if alive else "not running, started"
    return [f"process {watcher.name}: {why}"]


def _record_path(watcher: Watcher) -> Path:
    return Path(watcher.evidence) / "watcher.process"


def _read_record(watcher: Watcher) -> dict[str, str] | None:
    try:
        record = json.loads(_record_path(watcher).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and {"pid", "started", "version"} <= set(record) else None


def _start_of(pid: int) -> str | None:
    """When a process was started, in ticks since boot: with it, a number tells one process for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _start(watcher: Watcher) -> None:
    folder = Path(watcher.evidence)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": watcher.package, "PYTHONDONTWRITEBYTECODE": "1"}
    path = folder / "watcher.log"
    # A new log for each start, so that what it says is of this process.
    with path.open("w") as log:
        process = subprocess.Popen(
            watcher.command(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    started = _start_of(process.pid)
    if not _comes_up(process, path):
        lines = path.read_text().splitlines()
        said = lines[-1] if lines else "it said nothing"
        raise WatcherError(f"the watcher {watcher.name} did not come up: {said}")
    record = {"pid": str(process.pid), "started": started, "version": watcher.version()}
    _record_path(watcher).write_text(json.dumps(record))


def _comes_up(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until the process says that it watches, or has ended."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if _WATCHING in log.read_text():
            return True
        time.sleep(0.05)
    return False


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS
    while _start_of(pid) is not None and time.monotonic() < end:
        time.sleep(0.05)


def stop(watcher: Watcher, check_mode: bool) -> list[str]:
    """End it and take its unit away; sentences on what was (in check mode, would be) done.

    Raises WatcherError.
    """
    try:
        return [*_stop_unit(watcher, check_mode), *_stop_process(watcher, check_mode)]
    except OSError as error:
        raise WatcherError(
            f"the watcher {watcher.name} can't be stopped ({error.strerror}: {error.filename}): "
            "the play needs `become: true`"
        ) from error


def _stop_unit(watcher: Watcher, check_mode: bool) -> list[str]:
    path = Path(watcher.units) / f"{watcher.name}.service"
    if not path.is_file():
        return []
    if not check_mode:
        if Path(watcher.run_systemd).is_dir():
            _systemctl(watcher, "disable", "--now", path.name)
        path.unlink()
        if Path(watcher.run_systemd).is_dir():
            _systemctl(watcher, "daemon-reload")
    return [f"unit {path.name}: stopped and removed"]


def _stop_process(watcher: Watcher, check_mode: bool) -> list[str]:
    record = _read_record(watcher)
    alive = record is not None and _start_of(int(record["pid"])) == record["started"]
    if not check_mode:
        if record is not None and alive:
            _stop(int(record["pid"]))
        _record_path(watcher).unlink(missing_ok=True)
    return [f"process {watcher.name}: stopped"] if alive else []
