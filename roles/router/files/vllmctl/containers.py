"""An instance's containers on this machine: their processes, what they mount, what memory they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllmctl import shell
from vllmctl.errors import CommandError

LABEL_INSTANCE = "vllm-frontdoor.instance"
LABEL_SERVICE = "vllm-frontdoor.service"
MODEL_MOUNTS = "/models"


@dataclass(frozen=True)
class Container:
    """One container of an instance. `pid` is 0 while it isn't running."""

    service: str
    name: str
    pid: int
    running: bool
    binds: Mapping[str, str]


def containers(instance: str) -> list[Container]:
    """Every container of the instance; empty where Docker isn't here or may not be asked."""
    try:
        return asked(instance)
    except CommandError:
        return []


def asked(instance: str) -> list[Container]:
    """Every container of the instance; raises CommandError where Docker can't be asked."""
    listing = shell.output(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label={LABEL_INSTANCE}={instance}"]
    )
    names = listing.split()
    described = shell.output(["docker", "inspect", *names]) if names else "[]"
    return [_container(each) for each in json.loads(described)]


def _container(document: dict[str, Any]) -> Container:
    state = document["State"]
    return Container(
        service=str(document["Config"]["Labels"].get(LABEL_SERVICE, "")),
        name=str(document["Name"]).lstrip("/"),
        pid=int(state.get("Pid") or 0),
        running=bool(state.get("Running")),
        binds={
            str(mount["Destination"]): str(mount["Source"])
            for mount in document.get("Mounts", [])
            if mount.get("Type") == "bind"
        },
    )


@dataclass(frozen=True)
class Memory:
    """What a service's processes hold, in bytes. None: it can't be measured here."""

    host_bytes: int | None
    device_bytes: int | None


def memory_by_service(found: Iterable[Container], proc: Path = Path("/proc")) -> dict[str, Memory]:
    """Measured now: resident memory from /proc, device memory from nvidia-smi where that is here."""
    children = _children(proc)
    on_devices = _device_memory()
    return {
        container.service: _memory(_family(container.pid, children), on_devices, proc)
        for container in found
        if container.running and container.pid
    }


def _memory(pids: set[int], on_devices: Mapping[int, int] | None, proc: Path) -> Memory:
    resident = [size for pid in pids if (size := _resident_bytes(proc / str(pid))) is not None]
    device = None if on_devices is None else sum(on_devices.get(pid, 0) for pid in pids)
    return Memory(sum(resident) if resident else None, device)


def _device_memory() -> dict[int, int] | None:
    """Bytes on all GPUs by process; None without nvidia-smi."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listing = shell.attempt(command)
    if listing is None:
        return None
    used: dict[int, int] = {}
    for line in listing.splitlines():
        pid, _, mebibytes = line.partition(",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            used[int(pid)] = used.get(int(pid), 0) + int(mebibytes) * 2**20
    return used


def _children(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    return children


def _family(pid: int, children: Mapping[int, list[int]]) -> set[int]:
    family, todo = set(), [pid]
    while todo:
        each = todo.pop()
        if each not in family:
            family.add(each)
            todo += children.get(each, [])
    return family


def _resident_bytes(process: Path) -> int | None:
    """Its proportional share, so that what processes share counts once, and what is swapped out; None where
    it may not be read. As the launcher and the calibration measure."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss:", "SwapPss:"))]
    return sum(sizes) if sizes else None
