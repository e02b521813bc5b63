"""A Docker daemon as a process: started detached, found again by its pid file, stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_LINES_SHOWN = 12
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DaemonError(RuntimeError):
    """A daemon that can't be started or stopped; the text is a sentence for people."""


def init_system() -> str:
    """What runs this machine's services: ``systemd``, ``sysv`` (scripts of SysV or OpenRC), or ``none``."""
    if Path("/run/systemd/system").is_dir():
        return "systemd"
    if shutil.which("service", path=_SYSTEM_PATH) and Path("/etc/init.d/docker").exists():
        return "sysv"
    return "none"


def tail(log: Path) -> str:
    """The last lines of a daemon's log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(there is no log)"
    return "\n".join(lines[-_LINES_SHOWN:])


def start_detached(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a daemon that outlives this process, in a session of its own and with its output in `log`."""
    program = shutil.which(command[0], path=_SYSTEM_PATH)
    if program is None:
        raise DaemonError(
            f"{command[0]} is not on the box; install Docker there, or set container_engine_install: true."
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": _SYSTEM_PATH}
    with log.open("ab") as output:
        return subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


def wait_for(answers: Callable[[], bool], gone: Callable[[], bool], seconds: float) -> bool:
    """Wait until something `answers`, it is `gone`, or `seconds` are over; tells whether it answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answers():
            return True
        if gone():
            return False
        time.sleep(0.3)
    return False


def running_daemon(pid_file: Path) -> int | None:
    """The process that `pid_file` names, provided that it is a Docker daemon with this very pid file."""
    try:
        pid = int(pid_file.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
    arguments = _arguments(pid)
    ours = bool(arguments) and b"dockerd" in arguments[0] and os.fsencode(pid_file) in arguments
    return pid if ours else None


def _arguments(pid: int) -> list[bytes]:
    """A process's program and arguments; none when it has ended, also while nobody has reaped it yet."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return line.split(b"\0") if line else []


def make_bridge(name: str) -> None:
    """Make sure that a bridge for a daemon's containers exists. Raises DaemonError."""
    if not Path("/sys/class/net", name).exists():
        _command("ip", "link", "add", "name", name, "type", "bridge")


def clear_away(bridge: str, mounts: Sequence[str]) -> None:
    """Remove what a daemon with folders of its own leaves: its bridge and its mounts. Raises DaemonError."""
    for point in mounts:
        _command("umount", point)
    if Path("/sys/class/net", bridge).exists():
        _command("ip", "link", "delete", bridge)


def _command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, env={"PATH": _SYSTEM_PATH}, check=False)
    except FileNotFoundError as error:
        raise DaemonError(
            f"A Docker daemon beside the usual one needs the command {words[0]}, which is not on the box: "
            "'apt-get install iproute2 mount'."
        ) from error
    if done.returncode != 0:
        raise DaemonError(f"'{' '.join(words)}' failed: {done.stderr.strip()}")


def stop(pid_file: Path, seconds: float) -> bool:
    """Stop the daemon of `pid_file` and wait for its end; tells whether there was one. Raises DaemonError."""
    pid = running_daemon(pid_file)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # The daemon removes its pid file some time before it ends, so the process itself is watched.
        if not _arguments(pid):
            return True
        time.sleep(0.2)
    raise DaemonError(
        f"The Docker daemon with process id {pid} ({pid_file}) did not end within {seconds:.0f} s; look at "
        "its log."
    )
