#!/usr/bin/env python3
"""First process of an engine's container: starts the engine when its devices are free, and minds it.

Engines that share a GPU must not start together: each measures the free memory while it starts (vLLM 0.27.1,
vLLM 0.32.0). So the launcher takes the lock of each of the engine's devices, in sorted order, and keeps them
until the engine answers its health URL. It runs the engine as its child in a process group of its own, passes
signals on, reaps orphans, tells its state as JSON to whom asks, and ends with the child's exit code.

It starts the engine anew, as another incarnation, when the router orders it, and when the engine's port stays
closed although its process lives on, as it can after a failed wake (vLLM 0.32.0).
The order (`POST /restart`) needs the token of a file that only root and the router's group can read. Only the
host and the engine itself reach the port; the engine could read the token too, but it needs no order to end
itself.

When asked (`GET /memory`), it measures what the engine's processes hold of the host's memory and what is
used of its GPUs; in the thread of whoever asks, so that a hanging driver stops nothing else.

What decides is `step`, a function of its arguments; `Launcher` carries its effects out.
Standard library only; Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import errno
import fcntl
import hmac
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

STATE_SCHEMA_VERSION = 1
MEMORY_SCHEMA_VERSION = 1

Phase = Literal["waiting_for_devices", "starting", "healthy", "unhealthy", "stopping"]

FORWARDED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})

# A busy engine may answer one health request late; three in a row are no accident.
FAILURES_UNTIL_UNHEALTHY = 3
# Between the child's end and the end of what it left behind. Python's resource tracker cleans shared memory
# up in this time, which outlives the container when it shares the host's.
GROUP_GRACE_SECONDS = 2.0
GROUP_KILL_SECONDS = 3.0
# A port that was open and is closed: after so many probes in a row (5 s apart) the engine will not come back.
# A server that ends by itself after its core has died takes about 6 s for it (vLLM 0.32.0).
CLOSED_PROBES_UNTIL_RESTART = 6
# Between SIGTERM and SIGKILL of an engine that is started anew; nothing is in flight then.
RESTART_GRACE_SECONDS = 15.0
ORDER_TAKEN_SECONDS = 5.0
ORDER_MAX_BYTES = 4096

LOCK_RETRY_SECONDS = 0.2
IDLE_TICK_SECONDS = 5.0
HEALTH_INTERVAL_STARTING_SECONDS = 0.25
HEALTH_INTERVAL_STEADY_SECONDS = 5.0
HEALTH_TIMEOUT_SECONDS = 5.0

PROMISES_RETRY_SECONDS = 1.0
DEVICE_LIST_SECONDS = 10.0
CLEARANCE_SCHEMA_VERSION = 1

# Who asks twice within this time gets the same answer: measuring walks the engine's page tables.
MEMORY_CACHE_SECONDS = 2.0
# A driver that hangs is "unknown" after so long.
NVIDIA_SMI_SECONDS = 10.0
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits")
KIB = 2**10
MIB = 2**20

# GPU to GPU through host memory: what the plan renders where the peer path is not earned. The digit: NCCL
# parses an integer and ignores "true".
STAGED_PATH = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_DISABLE": "1",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
STAGED_PATH_FLAG = "--disable-custom-all-reduce"

EXIT_USAGE = 2
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128

PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>


class LauncherError(Exception):
    """A sentence for people and the exit code that goes with it."""

    def __init__(self, sentence: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


# ---------------------------------------------------------------------------------------- what decides


@dataclass(frozen=True)
class State:
    """All the launcher knows. `blocked` is what is missing before the devices may be taken, as a sentence.
    `since` and `group_deadline` are seconds of a monotonic clock."""

    devices: tuple[str, ...]
    phase: Phase
    since: float
    locked: tuple[str, ...] = ()
    child_running: bool = False
    child_exit: int | None = None
    health_failures: int = 0
    group_deadline: float | None = None
    group_killed: bool = False
    child: int = 0
    """How many children have been started; the number of the present one."""
    closed_probes: int = 0
    restarting: bool = False
    """The child is ended in order to start another one."""
    kill_at: float = 0.0
    child_killed: bool = False
    blocked: str | None = None

    @property
    def waiting_for(self) -> str | None:
        """What the launcher waits for: what was promised and isn't there, then the device whose lock is to be
        taken next: always the first one missing, in sorted order."""
        if self.phase != "waiting_for_devices":
            return None
        return self.blocked or next((each for each in self.devices if each not in self.locked), None)


@dataclass(frozen=True)
class PromisesChecked:
    """What the engine was promised has been looked at; `problem` is the first thing that isn't so."""

    problem: str | None


@dataclass(frozen=True)
class DeviceLocked:
    """The lock of a device has been taken."""

    device: str


@dataclass(frozen=True)
class HealthAnswered:
    """The health URL has been asked; `healthy` when it answered 2xx, `closed` when nobody listened.

    `child` is the number of the child that was asked.
    """

    healthy: bool
    closed: bool = False
    child: int = 1


@dataclass(frozen=True)
class RestartOrdered:
    """The child with this number shall make room for another one."""

    child: int


@dataclass(frozen=True)
class SignalReceived:
    """Somebody sent the launcher a signal that it passes on."""

    number: int


@dataclass(frozen=True)
class ChildExited:
    """The child has ended; `code` is its exit code, or 128 + the number of the signal that killed it."""

    code: int


@dataclass(frozen=True)
class Tick:
    """Time has passed; `group_alive` tells whether the child's process group still has a process."""

    group_alive: bool


Event = PromisesChecked | DeviceLocked | HealthAnswered | RestartOrdered | SignalReceived | ChildExited | Tick


@dataclass(frozen=True)
class StartChild:
    """Start the command."""


@dataclass(frozen=True)
class ReleaseDevices:
    """Give the locks of all devices back."""


@dataclass(frozen=True)
class ForwardSignal:
    """Send the child a signal."""

    number: int


@dataclass(frozen=True)
class EndChild:
    """Send the child, which still runs, and its whole process group a signal."""

    number: int


@dataclass(frozen=True)
class RenewIncarnation:
    """The next child is another incarnation; end what the last one left outside its process group."""


@dataclass(frozen=True)
class SignalGroup:
    """Send what is left of the child's process group a signal."""

    number: int


@dataclass(frozen=True)
class Exit:
    """End the launcher."""

    code: int


Effect = StartChild | ReleaseDevices | ForwardSignal | EndChild | RenewIncarnation | SignalGroup | Exit


def initial(devices: list[str], now: float) -> State:
    """The state before anything was done. Devices are sorted and each is named once: the order in which all
    launchers take locks is the same, so that two of them never wait for each other."""
    return State(devices=tuple(sorted(set(devices))), phase="waiting_for_devices", since=now)


def step(state: State, event: Event, now: float) -> tuple[State, list[Effect]]:
    """What an event means. Pure; `now` is a monotonic clock in seconds."""
    if isinstance(event, PromisesChecked):
        return start_if_ready(dataclasses.replace(state, blocked=event.problem), now)
    if isinstance(event, DeviceLocked):
        return _device_locked(state, event, now)
    if isinstance(event, HealthAnswered):
        return _health_answered(state, event, now)
    if isinstance(event, RestartOrdered):
        return _restart_ordered(state, event, now)
    if isinstance(event, SignalReceived):
        return _signal_received(state, event, now)
    if isinstance(event, ChildExited):
        return _child_exited(state, event, now)
    return _tick(state, event, now)


def _enter(state: State, phase: Phase, now: float) -> State:
    if state.phase == phase:
        return state
    return dataclasses.replace(state, phase=phase, since=now)


def _device_locked(state: State, event: DeviceLocked, now: float) -> tuple[State, list[Effect]]:
    return start_if_ready(dataclasses.replace(state, locked=(*state.locked, event.device)), now)


def start_if_ready(state: State, now: float) -> tuple[State, list[Effect]]:
    """Start the child once no lock is missing (at once when there are no devices)."""
    if state.phase != "waiting_for_devices" or state.waiting_for is not None:
        return state, []
    starting = _enter(state, "starting", now)
    return dataclasses.replace(starting, child_running=True, child=state.child + 1), [StartChild()]


def _health_answered(state: State, event: HealthAnswered, now: float) -> tuple[State, list[Effect]]:
    if state.phase not in ("starting", "healthy", "unhealthy") or event.child != state.child:
        return state, []
    if event.healthy:
        effects: list[Effect] = [ReleaseDevices()] if state.locked else []
        sound = dataclasses.replace(state, health_failures=0, closed_probes=0, locked=())
        return _enter(sound, "healthy", now), effects
    # Before it was ready once, a closed port is no news.
    closed_probes = state.closed_probes + 1 if event.closed and state.phase != "starting" else 0
    failed = dataclasses.replace(
        state, health_failures=state.health_failures + 1, closed_probes=closed_probes
    )
    if closed_probes >= CLOSED_PROBES_UNTIL_RESTART:
        return _begin_restart(failed, now)
    if state.phase == "healthy" and failed.health_failures >= FAILURES_UNTIL_UNHEALTHY:
        return _enter(failed, "unhealthy", now), []
    return failed, []


def _restart_ordered(state: State, event: RestartOrdered, now: float) -> tuple[State, list[Effect]]:
    if event.child != state.child or not state.child_running or state.phase == "stopping":
        return state, []  # that child is gone already, or going
    return _begin_restart(state, now)


def _begin_restart(state: State, now: float) -> tuple[State, list[Effect]]:
    ending = dataclasses.replace(
        _enter(state, "stopping", now), restarting=True, kill_at=now + RESTART_GRACE_SECONDS
    )
    return ending, [EndChild(signal.SIGTERM)]


def _start_again(state: State, now: float) -> tuple[State, list[Effect]]:
    """Wait for the devices like any engine that starts; locks that are still held are kept."""
    fresh = State(
        devices=state.devices,
        phase="waiting_for_devices",
        since=now,
        locked=state.locked,
        child=state.child,
    )
    started, effects = start_if_ready(fresh, now)
    return started, [RenewIncarnation(), *effects]


def _signal_received(state: State, event: SignalReceived, now: float) -> tuple[State, list[Effect]]:
    stops = event.number in STOP_SIGNALS
    if stops:
        state = dataclasses.replace(state, restarting=False)  # whoever stops the container means it
    if not state.child_running:
        waiting = state.phase == "waiting_for_devices"
        return state, [Exit(EXIT_SIGNAL_BASE + event.number)] if waiting and stops else []
    # Passed on each time it comes, and never answered with a kill: how long the engine may take to drain is
    # the container's stop time-out, after which Docker kills.
    return (_enter(state, "stopping", now) if stops else state), [ForwardSignal(event.number)]


def _child_exited(state: State, event: ChildExited, now: float) -> tuple[State, list[Effect]]:
    ended = dataclasses.replace(
        _enter(state, "stopping", now),
        child_running=False,
        child_exit=event.code,
        group_deadline=now + GROUP_GRACE_SECONDS,
    )
    return ended, [SignalGroup(signal.SIGTERM)]


def _tick(state: State, event: Tick, now: float) -> tuple[State, list[Effect]]:
    if state.child_exit is None or state.group_deadline is None:
        return _watch_ending(state, now) if state.restarting else (state, [])
    if not event.group_alive:
        return _start_again(state, now) if state.restarting else (state, [Exit(state.child_exit)])
    if now < state.group_deadline:
        return state, []
    if state.group_killed:
        # Killed and still there: it hangs in the kernel, and only the container's end can help.
        return state, [Exit(state.child_exit)]
    killed = dataclasses.replace(state, group_killed=True, group_deadline=now + GROUP_KILL_SECONDS)
    return killed, [SignalGroup(signal.SIGKILL)]


def _watch_ending(state: State, now: float) -> tuple[State, list[Effect]]:
    """Kill a child that doesn't make room; one that can't be killed is the container's business."""
    if now < state.kill_at:
        return state, []
    if state.child_killed:
        return state, [Exit(EXIT_SIGNAL_BASE + signal.SIGKILL)]
    killed = dataclasses.replace(state, child_killed=True, kill_at=now + GROUP_KILL_SECONDS)
    return killed, [EndChild(signal.SIGKILL)]


def report(state: State, service: str, incarnation: str, now: float) -> dict[str, Any]:
    """The document that the launcher serves: its state in words and numbers (seconds)."""
    return {
        "schema_version": STATE_SCHEMA_VERSION,
        "service": service,
        "incarnation": incarnation,
        "phase": state.phase,
        "since_seconds": round(max(0.0, now - state.since), 3),
        "devices": list(state.devices),
        "waiting_for": state.waiting_for,
        "child_exit": state.child_exit,
        "restarts": max(0, state.child - 1),
    }


def memory_report(reading: MemoryReading, service: str, now: float) -> dict[str, Any]:
    """The document that tells what was measured: sizes in bytes, times in seconds; null: not known."""
    return {
        "schema_version": MEMORY_SCHEMA_VERSION,
        "service": service,
        "age_seconds": round(max(0.0, now - reading.began), 3),
        "resident_bytes": reading.resident,
        "devices": {
            gpu: {"used_bytes": used, "total_bytes": total} for gpu, (used, total) in reading.gpus.items()
        },
        "problems": list(reading.problems),
    }


def exit_code_of(wait_status: int) -> int:
    """A child's exit code, or 128 + the number of the signal that killed it, as a shell tells it."""
    if os.WIFSIGNALED(wait_status):
        return EXIT_SIGNAL_BASE + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


# ------------------------------------------------------------------------------ what an engine's memory is


@dataclass(frozen=True)
class MemoryReading:
    """What was measured: `resident` is what the engine's processes hold of the host's memory, `gpus` what is
    used of each GPU, by whomever, and its size; in bytes. What isn't known is absent, and `problems` say why.
    `began` and `ended` are seconds of a monotonic clock.
    """

    began: float
    ended: float
    resident: int | None
    gpus: dict[str, tuple[int, int]]
    problems: tuple[str, ...]


def descendants(pid: int, parents: dict[int, int]) -> set[int]:
    """All that came of a process, without itself; `parents` is the parent of each process."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    family: set[int] = set()
    todo = [*children.get(pid, [])]
    while todo:
        each = todo.pop()
        if each not in family:
            family.add(each)
            todo += children.get(each, [])
    return family


def parent_of(stat: str) -> int:
    """The parent in a process's /proc/PID/stat; a program's name may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def resident_bytes(rollup: str) -> int:
    """A process's proportional share of its memory, from /proc/PID/smaps_rollup: what several processes share
    counts once, and what is swapped out counts too."""
    lines = (line.split() for line in rollup.splitlines() if line.startswith(("Pss:", "SwapPss:")))
    return sum(int(words[1]) * KIB for words in lines)


def gpu_memory(listing: str, gpus: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Bytes used and in all, of each of these GPUs that nvidia-smi's lines `uuid, MiB, MiB` tell."""
    found: dict[str, tuple[int, int]] = {}
    for line in listing.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3 and words[0] in gpus and words[1].isdecimal() and words[2].isdecimal():
            found[words[0]] = (int(words[1]) * MIB, int(words[2]) * MIB)
    return found


# ------------------------------------------------------------------------- what an engine was promised


def clearance_problem(document: object, boot_id: str, devices: tuple[str, ...]) -> str | None:
    """Why an engine on these devices may not start in this boot; None when it may.

    A boot is what moves faults between GPUs, so each has to be cleared by a short test (the host's unit).
    """
    if not isinstance(document, dict) or document.get("schema_version") != CLEARANCE_SCHEMA_VERSION:
        return "clearance: nobody has tested the hardware yet (run site.yml, or see the clearance unit)"
    if document.get("boot_id") != boot_id:
        return (
            "clearance: the hardware was not tested in this boot yet (the clearance unit does, or site.yml)"
        )
    refused = document.get("refused")
    found = refused if isinstance(refused, dict) else {"all": "its clearance can't be read"}
    for key in (*devices, *sorted({device.partition(":")[0] for device in devices if ":" in device}), "all"):
        if key in found:
            return f"clearance: {key}: {found[key]}"
    control = document.get("control")
    if len(devices) > 1 and control is not None:
        return f"clearance: the path between the devices: {control}"
    return None


def staged(command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The engine's command and environment with the staged path imposed, whatever was planned."""
    flagged = command if STAGED_PATH_FLAG in command else [*command, STAGED_PATH_FLAG]
    return flagged, {**environment, **STAGED_PATH}


@dataclass(frozen=True)
class Promises:
    """What an engine was promised: where to look, and what has to be there.

    `peer_path_boot` is the boot whose evidence allowed the peer path; `boot_id_file` is where the kernel says
    which boot this is (another file in tests).
    """

    devices: tuple[str, ...]
    clearance: Path | None
    model: Path | None
    visible_gpus: bool
    boot_id_file: Path
    peer_path_boot: str | None

    def problem(self) -> str | None:
        """The first promise that isn't kept, as a sentence; None when all are."""
        return self._clearance() or self._model() or self._gpus()

    def boot_id(self) -> str:
        """The id of this boot. Raises LauncherError where the kernel doesn't say it."""
        try:
            return self.boot_id_file.read_text().strip()
        except OSError as error:
            raise LauncherError(
                f"the boot id cannot be read: {self.boot_id_file}: {error.strerror}"
            ) from error

    def imposes_staged_path(self) -> bool:
        """Whether the peer path was planned on the evidence of another boot than this."""
        return self.peer_path_boot is not None and self.peer_path_boot != self.boot_id()

    def _clearance(self) -> str | None:
        if self.clearance is None:
            return None
        try:
            document = json.loads(self.clearance.read_bytes())
        except (OSError, ValueError):
            document = None
        return clearance_problem(document, self.boot_id(), self.devices)

    def _model(self) -> str | None:
        if self.model is None:
            return None
        try:
            empty = not any(self.model.iterdir())
        except OSError as error:
            return f"model: {self.model} cannot be read: {error.strerror}"
        return f"model: {self.model} is empty (is what holds it mounted on the host?)" if empty else None

    def _gpus(self) -> str | None:
        """Each GPU is one of those that the driver shows in this container."""
        wanted = [device for device in self.devices if device.startswith("GPU-")]
        if not self.visible_gpus or not wanted:
            return None
        try:
            listed = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=DEVICE_LIST_SECONDS, check=False
            ).stdout
        except FileNotFoundError:
            return "devices: nvidia-smi is not in the container (does the container runtime bring it in?)"
        except subprocess.TimeoutExpired:
            return f"devices: nvidia-smi does not answer within {DEVICE_LIST_SECONDS:g} s"
        missing = [device for device in wanted if device not in listed]
        return f"devices: {missing[0]} is not visible in the container" if missing else None


# ------------------------------------------------------------------------------------ what touches the world


def lock_path(folder: Path, device: str) -> Path:
    """The lock file of a device. Raises LauncherError for a key that is no plain file name."""
    if not device or "/" in device or device.startswith("."):
        raise LauncherError(f"{device!r} is not a device key: use cpu:<name> or GPU-<uuid> with --device")
    return folder / f"{device}.lock"


class DeviceLocks:
    """The flocks of devices; the kernel gives them back when the launcher ends, however it ends."""

    def __init__(self, folder: Path, devices: tuple[str, ...]) -> None:
        self._paths = {device: lock_path(folder, device) for device in devices}
        self._held: dict[str, int] = {}
        if devices and not folder.is_dir():
            raise LauncherError(
                f"the folder of the device locks is missing: {folder} (mount it, or set --locks)"
            )

    def try_lock(self, device: str) -> bool:
        """Take a device's lock if it is free. Raises LauncherError when its file cannot be opened."""
        path = self._paths[device]
        try:
            # Reading is enough for flock, so that engines of different users can share a file.
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise LauncherError(
                f"the lock of device {device} cannot be opened: {path}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held[device] = descriptor
        return True

    def release(self) -> list[str]:
        """Give all locks back; returns the devices that were held."""
        released = list(self._held)
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        return released


class Answer(NamedTuple):
    """What came from a health URL: nothing wrong or a sentence about it, and whether nobody listened."""

    problem: str | None
    closed: bool = False


def ask_health(url: str, timeout_seconds: float) -> Answer:
    """Ask a URL that should answer 2xx."""
    # No proxy: the engine is in this container, whatever its environment says about proxies.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_seconds) as response:
            status = int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(f"{url} answered {error.code}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Answer(f"{url} does not answer: {error}", isinstance(reason, ConnectionRefusedError))
    except Exception as error:  # noqa: BLE001 -- http.client's errors share no base that says "bad answer"
        return Answer(f"{url} does not speak HTTP: {error!r}")
    return Answer(None if 200 <= status < 300 else f"{url} answered {status}")


class HealthWatch(threading.Thread):
    """Asks the health URL again and again in a thread of its own, so that a slow answer blocks no signal."""

    def __init__(self, url: str, inbox: Inbox, state: Callable[[], State]) -> None:
        super().__init__(name="health", daemon=True)
        self._url = url
        self._inbox = inbox
        self._state = state
        self._hurry = threading.Event()

    def hurry(self) -> None:
        """A child has just been started: ask now, and often until it is ready."""
        self._hurry.set()

    def run(self) -> None:
        while True:
            self._hurry.clear()
            child = self._state().child
            answer = ask_health(self._url, HEALTH_TIMEOUT_SECONDS)
            self._inbox.put(HealthAnswered(answer.problem is None, answer.closed, child))
            steady = self._state().phase in ("healthy", "unhealthy") or answer.problem is None
            self._hurry.wait(HEALTH_INTERVAL_STEADY_SECONDS if steady else HEALTH_INTERVAL_STARTING_SECONDS)


class Inbox:
    """Events for the main loop; a pipe wakes it, from signals and from threads alike."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)

    def listen_to_signals(self) -> None:
        """Route the forwarded signals, and the news of ended children, to this inbox."""
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._events.append(SignalReceived(number))

    def put(self, event: Event) -> None:
        self._events.append(event)
        try:
            os.write(self._writing, b"\0")
        except BlockingIOError:
            return  # the pipe is full of reasons to wake up already

    def wait(self, timeout_seconds: float) -> None:
        """Sleep until something happens or the time is over."""
        ready, _, _ = select.select([self._reading], [], [], timeout_seconds)
        if ready:
            os.read(self._reading, 4096)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None


class MeterError(Exception):
    """Something can't be measured here; a sentence."""


class Meter:
    """Measures what the engine holds. Threads of the state server use it, one at a time."""

    def __init__(self, devices: tuple[str, ...], proc: Path = Path("/proc")) -> None:
        self._gpus = tuple(device for device in devices if device.startswith("GPU-"))
        self._proc = proc
        self._one_at_a_time = threading.Lock()
        self._newest: MemoryReading | None = None
        self._helper: subprocess.Popen[str] | None = None

    @property
    def helper(self) -> int | None:
        """The process of nvidia-smi, which is none of the engine's, while it is there."""
        helper = self._helper
        return helper.pid if helper is not None and helper.poll() is None else None

    def read(self) -> MemoryReading:
        """What is measured now, or was a moment ago."""
        with self._one_at_a_time:
            newest = self._newest
            if newest is None or time.monotonic() - newest.ended > MEMORY_CACHE_SECONDS:
                newest = self._newest = self._measure()
            return newest

    def _measure(self) -> MemoryReading:
        began = time.monotonic()
        resident, gpus, problems = None, {}, []
        try:
            resident = self._resident()
        except MeterError as error:
            problems.append(str(error))
        try:
            gpus = gpu_memory(self._ask_nvidia_smi(), self._gpus) if self._gpus else {}
            if missing := [gpu for gpu in self._gpus if gpu not in gpus]:
                problems.append(f"nvidia-smi does not tell what is used of {', '.join(missing)}")
        except MeterError as error:
            problems.append(str(error))
        return MemoryReading(began, time.monotonic(), resident, gpus, tuple(problems))

    def _resident(self) -> int:
        family = descendants(os.getpid(), self._parents()) - {self.helper}
        sizes = [size for pid in family if (size := self._resident_of(pid)) is not None]
        if family and not sizes:
            raise MeterError("the kernel shows no smaps_rollup of the engine's processes")
        return sum(sizes)

    def _resident_of(self, pid: int) -> int | None:
        try:
            return resident_bytes((self._proc / str(pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has ended meanwhile
        except (OSError, ValueError, IndexError) as error:
            raise MeterError(f"/proc/{pid}/smaps_rollup cannot be read: {error}") from None

    def _parents(self) -> dict[int, int]:
        found = {}
        for stat in self._proc.glob("[0-9]*/stat"):
            try:
                found[int(stat.parent.name)] = parent_of(stat.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue  # it has ended meanwhile
        return found

    def _ask_nvidia_smi(self) -> str:
        if self.helper is not None:
            raise MeterError("nvidia-smi of an earlier try still hangs")
        try:
            self._helper = helper = subprocess.Popen(
                NVIDIA_SMI,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            raise MeterError("nvidia-smi is not in the container") from None
        except OSError as error:
            raise MeterError(f"nvidia-smi cannot be run: {error.strerror}") from None
        try:
            # Its exit code says nothing: the main loop reaps every child, and may do so first.
            return helper.communicate(timeout=NVIDIA_SMI_SECONDS)[0]
        except subprocess.TimeoutExpired:
            # Not waited for: what hangs in the driver can't be killed.
            helper.kill()
            raise MeterError(f"nvidia-smi does not answer within {NVIDIA_SMI_SECONDS:g} s") from None


class RefusedOrderError(Exception):
    """An order that isn't carried out: a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class StateServer(ThreadingHTTPServer):
    """Serves the launcher's state at /state, the engine's memory at /memory; takes orders at /restart."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, launcher: Launcher) -> None:
        self.launcher = launcher
        try:
            super().__init__((address, port), StateHandler)
        except (OSError, OverflowError) as error:
            reason = (
                "is in use"
                if getattr(error, "errno", None) == errno.EADDRINUSE
                else f"cannot be used: {error}"
            )
            raise LauncherError(
                f"port {port} for the launcher's state {reason} (set --state-port)"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class StateHandler(BaseHTTPRequestHandler):
    """One request to the launcher."""

    server: StateServer
    timeout = 10  # seconds; a client that says nothing holds no thread for ever

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/state":
            self._answer(200, self.server.launcher.report())
        elif path == "/memory":
            self._answer(200, self.server.launcher.measure())
        else:
            message = f"no such path: {self.path}; the state is at /state, the engine's memory at /memory"
            self._answer(404, {"error": {"message": message}})

    def do_POST(self) -> None:
        """`POST /restart` with a bearer token and `{"incarnation": <the one that shall end>}`."""
        if self.path != "/restart":
            self._answer(404, {"error": {"message": f"no such path: {self.path}; orders go to /restart"}})
            return
        try:
            authorization = self.headers.get("Authorization", "")
            self.server.launcher.restart(authorization, self._incarnation)
        except RefusedOrderError as refused:
            self._answer(refused.status, {"error": {"message": str(refused)}})
        else:
            self._answer(202, self.server.launcher.report())

    def _incarnation(self) -> str:
        length = self.headers.get("Content-Length", "")
        try:
            size = int(length)
            document = json.loads(self.rfile.read(size)) if 0 <= size <= ORDER_MAX_BYTES else None
        except ValueError:
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("incarnation"), str):
            raise RefusedOrderError(400, 'the body must be {"incarnation": "<the one that shall end>"}')
        return str(document["incarnation"])

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The engine's log is not for polls of the launcher."""


class Launcher:
    """Carries out what `step` decides."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._command: list[str] = options.command
        self._service: str = options.service
        self._health_url: str = options.health
        self._incarnation = secrets.token_hex(16)
        self._state = initial(options.device, time.monotonic())
        self._locks = DeviceLocks(options.locks, self._state.devices)
        self._promises = Promises(
            devices=self._state.devices,
            clearance=options.clearance,
            model=options.model,
            visible_gpus=options.visible_gpus,
            boot_id_file=options.boot_id_file,
            peer_path_boot=options.peer_path_boot,
        )
        self._promises_due = 0.0
        self._inbox = Inbox()
        self._child_pid: int | None = None
        self._token_file: Path | None = options.token_file
        self._health = HealthWatch(self._health_url, self._inbox, lambda: self._state)
        self._meter = Meter(self._state.devices)
        self._told_waiting_for: str | None = None
        self._exit_code: int | None = None
        self._server = StateServer(options.state_address, options.state_port, self)

    def report(self) -> dict[str, Any]:
        """The state document; called from the server's threads, so it reads the state once."""
        return report(self._state, self._service, self._incarnation, time.monotonic())

    def measure(self) -> dict[str, Any]:
        """The document about the engine's memory; called from the server's threads."""
        return memory_report(self._meter.read(), self._service, time.monotonic())

    def restart(self, authorization: str, incarnation: Callable[[], str]) -> None:
        """Take an order to start the engine anew; called from the server's threads.

        Returns when the engine is on its way down, so that nobody who asks takes it for sound any more.
        Raises RefusedOrderError.
        """
        self._check_token(authorization)
        state, wanted = self._state, incarnation()
        if wanted != self._incarnation:
            raise RefusedOrderError(409, f"the incarnation is another one already: {self._incarnation}")
        self._log("a restart is ordered")
        self._inbox.put(RestartOrdered(state.child))
        end = time.monotonic() + ORDER_TAKEN_SECONDS
        while self._state.child == state.child and self._state.phase in ("starting", "healthy", "unhealthy"):
            if time.monotonic() > end:
                raise RefusedOrderError(503, "the launcher is busy; order again")
            time.sleep(0.02)

    def _check_token(self, authorization: str) -> None:
        if self._token_file is None:
            raise RefusedOrderError(501, "this launcher takes no orders (set --token-file)")
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            raise RefusedOrderError(503, f"{self._token_file} cannot be read: {error.strerror}") from None
        scheme, _, given = authorization.partition(" ")
        if not token or scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token):
            raise RefusedOrderError(401, "this needs the header 'Authorization: Bearer <launcher token>'")

    def run(self) -> int:
        """Run until the child has ended; returns the exit code. Raises LauncherError."""
        become_reaper()
        self._inbox.listen_to_signals()
        threading.Thread(target=self._server.serve_forever, name="state", daemon=True).start()
        self._log(f"state on port {self._server.server_address[1]}, incarnation {self._incarnation}")
        self._check_promises()
        while self._exit_code is None:
            self._turn()
        return self._exit_code

    def _turn(self) -> None:
        while self._exit_code is None and (event := self._inbox.take()) is not None:
            self._handle(event)
        self._reap()
        if self._exit_code is None:
            self._check_promises()
        if self._exit_code is None:
            self._try_next_lock()
        ending = self._state.child_exit is not None or self._state.restarting
        if self._exit_code is None and ending:
            self._handle(Tick(self._group_alive()))
        if self._exit_code is None:
            urgent = self._state.phase == "waiting_for_devices" or ending
            self._inbox.wait(LOCK_RETRY_SECONDS if urgent else IDLE_TICK_SECONDS)

    def _handle(self, event: Event) -> None:
        self._take(step(self._state, event, time.monotonic()))

    def _take(self, decision: tuple[State, list[Effect]]) -> None:
        before = self._state.phase
        self._state, effects = decision
        if self._state.phase != before:
            self._log(f"{before} -> {self._state.phase}")
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartChild):
            self._start_child()
        elif isinstance(effect, ReleaseDevices):
            for device in self._locks.release():
                self._log(f"device {device}: released")
        elif isinstance(effect, ForwardSignal):
            self._forward(effect.number)
        elif isinstance(effect, EndChild):
            self._signal_group(effect.number, "the engine, which shall start anew")
        elif isinstance(effect, RenewIncarnation):
            self._renew()
        elif isinstance(effect, SignalGroup):
            self._signal_group(effect.number, "what the engine left running")
        else:
            self._exit_code = effect.code

    def _check_promises(self) -> None:
        """Before the first lock is taken; again every second while something is missing."""
        now = time.monotonic()
        if self._state.phase != "waiting_for_devices" or self._state.locked or now < self._promises_due:
            return
        self._promises_due = now + PROMISES_RETRY_SECONDS
        problem = self._promises.problem()
        if problem is not None and problem != self._state.blocked:
            self._log(f"{problem}; waiting")
        self._handle(PromisesChecked(problem))

    def _try_next_lock(self) -> None:
        while self._state.blocked is None and (device := self._state.waiting_for) is not None:
            if not self._locks.try_lock(device):
                if self._told_waiting_for != device:
                    self._log(f"device {device}: in use by another engine that is starting, waiting")
                    self._told_waiting_for = device
                return
            self._log(f"device {device}: locked")
            self._handle(DeviceLocked(device))

    def _start_child(self) -> None:
        command, environment = self._command, {**os.environ, "FRONTDOOR_INCARNATION": self._incarnation}
        if self._promises.imposes_staged_path():
            self._log("the peer path was proven in another boot: the staged path is imposed")
            command, environment = staged(command, environment)
        program = command[0]
        try:
            # posix_spawn because other threads run; signals that Python ignores get their meaning back.
            self._child_pid = os.posix_spawnp(
                program,
                command,
                environment,
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except FileNotFoundError as error:
            raise LauncherError(f"command not found: {program}", EXIT_NOT_FOUND) from error
        except OSError as error:
            sentence = f"command cannot be executed: {program}: {error.strerror}"
            raise LauncherError(sentence, EXIT_NOT_EXECUTABLE) from error
        self._log(f"started {program} as process {self._child_pid}, incarnation {self._incarnation}")
        if not self._health.is_alive():
            self._health.start()
        self._health.hurry()

    def _renew(self) -> None:
        for pid in _children_of_this_process():
            if pid == self._meter.helper:
                continue
            # The child itself is reaped; what is left was orphaned outside its process group.
            os.kill(pid, signal.SIGKILL)
            self._log(f"SIGKILL: sent to process {pid}, which the engine left running")
        self._child_pid = None
        self._told_waiting_for = None
        self._incarnation = secrets.token_hex(16)

    def _forward(self, number: int) -> None:
        if self._child_pid is None:
            return
        self._log(f"{signal.Signals(number).name}: passed on to process {self._child_pid}")
        # Not reaped yet, so the number cannot belong to another process.
        os.kill(self._child_pid, number)

    def _signal_group(self, number: int, whom: str) -> None:
        if self._child_pid is None:
            return
        try:
            os.killpg(self._child_pid, number)
        except ProcessLookupError:
            return  # the child left nobody behind
        self._log(f"{signal.Signals(number).name}: sent to {whom}")

    def _group_alive(self) -> bool:
        if self._child_pid is None:
            return False
        try:
            os.killpg(self._child_pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _reap(self) -> None:
        """Collect every ended child: the engine, and orphans that the kernel gave to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child_pid and self._state.child_running:
                code = exit_code_of(status)
                self._log(f"the engine ended with exit code {code}")
                self._handle(ChildExited(code))

    def _log(self, sentence: str) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        print(f"{moment} launcher {self._service}: {sentence}", file=sys.stderr, flush=True)


def _children_of_this_process() -> list[int]:
    """Every process whose parent this one is, orphans that came to it included."""
    found: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(word) for word in listing.read_text().split()]
        except OSError:
            continue  # a thread that has just ended
    return found


def become_reaper() -> None:
    """Have orphans of the engine come to this process also where it is not process 1 (Compose's `init`)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise LauncherError(f"cannot take over orphaned processes: {os.strerror(number)}")


# ------------------------------------------------------------------------------------------- command line


class Parser(argparse.ArgumentParser):
    """Errors in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise LauncherError(f"{message} (see --help)")


def parser() -> argparse.ArgumentParser:
    """The command line: `run … -- COMMAND…` and `probe URL`."""
    top = Parser(prog="launcher", description="First process of an engine's container.")
    commands = top.add_subparsers(dest="action", required=True, metavar="run|probe", parser_class=Parser)
    run = commands.add_parser("run", help="start an engine when its devices are free, and mind it")
    run.add_argument("--service", required=True, help="name of the service, for the log and the state")
    run.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="KEY",
        help="device the engine uses, cpu:<name> or GPU-<uuid>; may be given several times",
    )
    run.add_argument("--locks", type=Path, default=Path("/locks"), help="folder of the devices' lock files")
    run.add_argument("--clearance", type=Path, metavar="FILE", help="the word that this boot was tested")
    run.add_argument("--model", type=Path, metavar="FOLDER", help="model folder that has to be mounted")
    run.add_argument("--visible-gpus", action="store_true", help="the driver has to show each GPU here")
    run.add_argument("--peer-path-boot", metavar="ID", help="boot whose evidence allowed the peer path")
    run.add_argument(
        "--boot-id-file",
        type=Path,
        default=Path("/proc/sys/kernel/random/boot_id"),
        help="where the kernel says which boot this is",
    )
    run.add_argument("--health", required=True, metavar="URL", help="answers 2xx once the engine is ready")
    run.add_argument("--state-address", default="0.0.0.0", help="address the state is served at")
    run.add_argument("--state-port", type=int, default=9000, help="port the state is served at; 0: any")
    run.add_argument(
        "--token-file", type=Path, metavar="FILE", help="whoever knows its content may order a restart"
    )
    run.add_argument("command", nargs="+", metavar="COMMAND", help="the engine's command, after --")
    probe = commands.add_parser("probe", help="exit code 0 when a URL answers 2xx, else 1")
    probe.add_argument("url", metavar="URL")
    probe.add_argument("--timeout", type=float, default=HEALTH_TIMEOUT_SECONDS, help="in seconds")
    return top


def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        options = parser().parse_args(arguments)
        if options.action == "run":
            return Launcher(options).run()
        problem = ask_health(options.url, options.timeout).problem
        if problem is not None:
            raise LauncherError(problem, exit_code=1)
        return 0
    except LauncherError as error:
        print(f"launcher: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
