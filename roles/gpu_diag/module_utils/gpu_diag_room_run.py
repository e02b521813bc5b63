"""Make room on GPUs for a probe: which services lie on them, and orders to the router's admin listener."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from .gpu_diag_commands import run_bounded
from .gpu_diag_memory import FreeMemory, parse_free_memory, short_ones
from .gpu_diag_router import Admin, RouterError, Service, Status

# nvidia-smi without persistence mode initialises each GPU first: seconds per GPU.
_NVIDIA_SMI_SECONDS = 45.0
_LOOK_SECONDS = 0.5
_MAKE_ROOM = "say so with `-e gpu_diag_make_room=true`, which puts them to sleep for the time of the probes"


class RoomError(Exception):
    """Room can't be made; the message is a sentence."""


@dataclass
class Room:
    """What was found and done: sentences, services put to sleep, and devices cordoned for the probes."""

    lines: list[str] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)


def in_the_way(services: Iterable[Service], short: Iterable[FreeMemory]) -> list[Service]:
    """The services that use memory of GPUs with too little of it. Pure."""
    needed = {gpu.uuid for gpu in short}
    return [service for service in services if service.uses_memory and needed.intersection(service.devices)]


def shortage_lines(short: Sequence[FreeMemory], services: Iterable[Service]) -> list[str]:
    """A sentence for each GPU without room: how much is free, and which services must make room. Pure."""
    known = list(services)
    lines = []
    for gpu in short:
        names = [f"{service.name} ({service.depth})" for service in in_the_way(known, [gpu])]
        who = (
            f"must make room: {', '.join(names)}"
            if names
            else "none of this instance's services is awake on it"
        )
        lines.append(f"{gpu.sentence()}; {who}.")
    return lines


def free_memory(nvidia_smi: Sequence[str]) -> list[FreeMemory] | str | None:
    """Free memory of each GPU, None where there is no driver, or a sentence on why it isn't known."""
    outcome = run_bounded([*nvidia_smi, "-q", "-x"], _NVIDIA_SMI_SECONDS)
    if outcome.problem == f"{nvidia_smi[0]} is not installed":
        return None
    if outcome.problem is not None:
        return outcome.problem
    found = parse_free_memory(outcome.stdout)
    return "nvidia-smi answered something that is not its XML" if found is None else found


def look(admin: Admin, nvidia_smi: Sequence[str]) -> tuple[Room, list[FreeMemory], Status | None]:
    """Say which services must make room; the GPUs without room, and what the router told (None: nothing)."""
    memory = free_memory(nvidia_smi)
    if memory is None:
        return Room(["There is no GPU driver here, so no service must make room."]), [], None
    if isinstance(memory, str):
        return Room([f"How much memory is free on the GPUs isn't known: {memory}."]), [], None
    short = short_ones(memory)
    if not short:
        return Room(["Every GPU has room for the probes; no service must make any."]), [], None
    try:
        status = admin.status()
    except RouterError as error:
        lines = [f"{gpu.sentence()}." for gpu in short]
        return Room([*lines, f"Which services must make room isn't known: {error}."]), short, None
    lines = shortage_lines(short, status.services)
    if in_the_way(status.services, short):
        lines.append(f"To make room, {_MAKE_ROOM}.")
    return Room(lines), short, status


def make(admin: Admin, nvidia_smi: Sequence[str], seconds: float, check_mode: bool) -> Room:
    """Put the services that lie in the way to sleep, keep them from being woken, and wait for the memory.

    Raises RoomError where that can't be done; then nothing stays cordoned.
    """
    room, short, status = look(admin, nvidia_smi)
    if not short:
        return room
    if status is None:
        raise RoomError(" ".join(room.lines))
    services = in_the_way(status.services, short)
    room.lines = shortage_lines(short, status.services)
    room.services = [service.name for service in services]
    wanted = {device for service in services for device in service.devices}
    on_short = {device for service in status.services for device in service.devices}
    wanted |= {gpu.uuid for gpu in short} & on_short
    room.devices = sorted(wanted - status.cordoned)
    if check_mode:
        return room
    end = time.monotonic() + seconds
    try:
        _put_to_sleep(admin, room, end)
        _await_memory(nvidia_smi, end)
    except (RoomError, RouterError) as error:
        _uncordon(admin, room.devices)
        raise RoomError(f"room could not be made, and nothing stays cordoned: {error}") from error
    room.lines.append(f"Put to sleep for the probes: {', '.join(room.services) or 'nothing'}.")
    return room


def _put_to_sleep(admin: Admin, room: Room, end: float) -> None:
    # Cordoned first: a request in between must not wake what has just fallen asleep.
    for device in room.devices:
        admin.order(f"devices/{quote(device, safe='')}/cordon")
    for name in room.services:
        admin.order(f"services/{quote(name, safe='')}/sleep", max(1.0, end - time.monotonic()))


def _await_memory(nvidia_smi: Sequence[str], end: float) -> None:
    while True:
        memory = free_memory(nvidia_smi)
        short = short_ones(memory) if isinstance(memory, list) else []
        if isinstance(memory, list) and not short:
            return
        if time.monotonic() > end:
            why = " ".join(f"{gpu.sentence()}." for gpu in short) or f"{memory}."
            raise RoomError(f"{why} The services are asleep: something else uses it, see `nvidia-smi`")
        time.sleep(_LOOK_SECONDS)


def _uncordon(admin: Admin, devices: Iterable[str]) -> list[str]:
    """Uncordon all, whatever single ones say; the sentences of those that failed."""
    failed = []
    for device in devices:
        try:
            admin.order(f"devices/{quote(device, safe='')}/uncordon")
        except RouterError as error:
            failed.append(f"{device} may still be cordoned: {error}")
    return failed


def give_back(admin: Admin, room: Room, check_mode: bool) -> Room:
    """Let services be woken again, by their requests. Raises RoomError where a device stays cordoned."""
    failed = [] if check_mode else _uncordon(admin, room.devices)
    if failed:
        raise RoomError("; ".join(failed))
    names = ", ".join(room.services)
    line = f"May be woken again by their requests: {names}." if names else "No service had to make room."
    return Room([line], room.services, room.devices)
