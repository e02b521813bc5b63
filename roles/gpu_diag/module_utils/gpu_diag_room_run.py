"""Make room on GPUs for a probe: which services lie on them, and orders to the router's admin listener."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

from .gpu_diag_commands import run_bounded
from .gpu_diag_memory import FreeMemory, parse_free_memory, short_ones

Json = dict[str, object]

# nvidia-smi without persistence mode initialises each GPU first: seconds per GPU.
_NVIDIA_SMI_SECONDS = 45.0
_ANSWER_SECONDS = 15.0
_LOOK_SECONDS = 0.5
# At these depths the router holds the weights out of the GPU's memory, or there is no process (architecture).
_DEPTHS_WITHOUT_MEMORY = ("sleeping", "offloaded", "stopped")
_MAKE_ROOM = "say so with `-e gpu_diag_make_room=true`, which puts them to sleep for the time of the probes"


class RoomError(Exception):
    """Room can't be made; the message is a sentence."""


class NoAnswerError(RoomError):
    """The router can't be asked; the message is a sentence."""


@dataclass(frozen=True)
class Service:
    """A service as the router tells of it."""

    name: str
    depth: str
    devices: tuple[str, ...]

    @property
    def uses_memory(self) -> bool:
        """Whether its weights may lie in its GPUs' memory."""
        return self.depth not in _DEPTHS_WITHOUT_MEMORY


@dataclass(frozen=True)
class Status:
    """What the router tells: services, and devices on which nothing is woken."""

    services: tuple[Service, ...] = ()
    cordoned: frozenset[str] = frozenset()


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


class Admin:
    """The router's admin listener, found as `vllmctl` finds it: from what the router was deployed with."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A proxy of the environment has no business on the loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def status(self) -> Status:
        """Services and cordoned devices. Raises NoAnswerError."""
        answer = self._ask("/admin/status", "GET", {}, _ANSWER_SECONDS)
        return parse_status(answer)

    def order(self, path: str, timeout_seconds: float | None = None) -> None:
        """POST with the operator's token. Raises RoomError with the router's own sentence."""
        query = f"?{urlencode({'timeout': f'{timeout_seconds:g}'})}" if timeout_seconds else ""
        headers = {"Authorization": f"Bearer {self._token()}", "X-Operator": "gpu_diag"}
        self._ask(f"/admin/{path}{query}", "POST", headers, (timeout_seconds or 0) + _ANSWER_SECONDS)

    def _token(self) -> str:
        path = self._root / "secrets" / "admin-token"
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RoomError(
                f"the router's admin token {path} can't be read ({error.strerror}): the play needs "
                "`become: true`, and a deployed router"
            ) from error

    def url(self) -> str:
        """Where it listens. Raises NoAnswerError where no router was deployed."""
        path = self._root / "router" / "router.env"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise NoAnswerError(f"no router is deployed ({path}: {error.strerror})") from error
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        address = settings.get("ROUTER_ADMIN_ADDRESS", "").strip("'\"")
        if not address:
            raise NoAnswerError(f"{path} does not say ROUTER_ADMIN_ADDRESS: deploy the router again")
        return f"http://{address}"

    def _ask(self, path: str, method: str, headers: Mapping[str, str], seconds: float) -> object:
        url = self.url()
        request = urllib.request.Request(
            url + path, data=b"{}" if method == "POST" else None, method=method,
            headers={"Content-Type": "application/json", **headers},
        )  # fmt: skip
        try:
            with self._opener.open(request, timeout=seconds) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise RoomError(_said_by(error)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswerError(f"the router's admin listener {url} does not answer ({reason})") from error


def _said_by(error: urllib.error.HTTPError) -> str:
    try:
        said = json.load(error)["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        said = "no sentence"
    return f"the router refuses ({error.code}): {said}"


def parse_status(answer: object) -> Status:
    """The services out of the answer to GET /admin/status. Pure; raises NoAnswerError for another form."""
    services = answer.get("services") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(services, list):
        raise NoAnswerError("the router's admin listener answered something that is not its status")
    cordoned = answer.get("cordoned")
    return Status(
        tuple(
            Service(str(one["name"]), str(one["depth"]), tuple(map(str, one.get("devices") or ())))
            for one in services
            if isinstance(one, dict) and {"name", "depth"} <= set(one)
        ),
        frozenset(map(str, cordoned)) if isinstance(cordoned, list) else frozenset(),
    )


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
    except RoomError as error:
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
    except RoomError as error:
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
        except RoomError as error:
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
