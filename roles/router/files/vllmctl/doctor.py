"""Looks at the box, read-only, for `vllmctl doctor`; `findings` judges."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vllmctl import findings, http
from vllmctl.box import Box
from vllmctl.containers import Container, asked
from vllmctl.errors import CommandError
from vllmctl.findings import Finding, Level

_VERSION_SECONDS = 3.0
_CLOCK_NOT_SYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


def examine(box: Box) -> list[Finding]:
    """Every check; never raises."""
    return [*_router(box), *_mounts(box), *_disks(box), findings.clock(_clock_synchronised())]


def _router(box: Box) -> Iterator[Finding]:
    try:
        status = http.get(f"{box.admin_url}/admin/status")
    except CommandError as error:
        advice = f"Is its container running ('docker ps')? Its log: docker logs {box.container('router')}"
        yield Finding(Level.CRITICAL, "router", str(error), advice)
        return
    yield Finding(Level.OK, "router", f"The router answers at {box.admin_url}.")
    yield from findings.engines(status)
    yield from findings.memory(status)
    yield _token(box)
    yield findings.versions(_versions(box))
    try:
        view = http.get(f"{box.admin_url}/admin/evidence")
        gone = _gone(each["model"] for each in view["weights"])
        yield from findings.evidence(view, gone, findings.devices_of(status))
    except CommandError as error:
        yield Finding(Level.UNKNOWN, "evidence", str(error), "Deploy again: the router may be older.")


def _gone(folders: Iterable[str]) -> frozenset[str]:
    """Those that aren't there; one that can't be looked at is."""
    return frozenset(folder for folder in folders if not _is_there(folder))


def _is_there(folder: str) -> bool:
    try:
        Path(folder).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _token(box: Box) -> Finding:
    try:
        box.token()
    except CommandError as error:
        return Finding(Level.WARNING, "token", str(error), "Without it you can look, and order nothing.")
    return Finding(Level.OK, "token", "The admin token can be read.")


def _versions(box: Box) -> dict[str, str | None]:
    try:
        registry = json.loads((box.root / "registry" / "registry.json").read_text(encoding="utf-8"))
        addresses = {each["name"]: each["base_url"] for each in registry["services"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: _version(url) for name, url in addresses.items()}


def _version(base_url: str) -> str | None:
    try:
        return str(http.get(f"{base_url}/version", _VERSION_SECONDS).get("version"))
    except CommandError:
        return None


def _mounts(box: Box) -> Iterator[Finding]:
    advice = "Ask as root, or as a member of the group docker; DOCKER_HOST says which daemon."
    try:
        found = asked(box.instance)
    except CommandError as error:
        yield Finding(Level.UNKNOWN, "containers", f"Docker can't be asked: {error}", advice)
        return
    if not found:
        yield Finding(Level.UNKNOWN, "containers", "Docker shows no container of this instance.", advice)
    for container in found:
        yield _container(container)


def _container(container: Container) -> Finding:
    check = f"container {container.service}"
    if not container.running:
        advice = f"Its log: docker logs --tail 50 {container.name}; start it: docker start {container.name}"
        return Finding(Level.CRITICAL, check, f"{container.name} is not running.", advice)
    gone = sorted(source for source in container.binds.values() if not Path(source).exists())
    if gone:
        advice = "Mount it again, then deploy again."
        return Finding(Level.CRITICAL, check, f"{container.name} lost what it mounts: {gone[0]}.", advice)
    return Finding(Level.OK, check, f"{container.name} runs, all it mounts is there.")


def _disks(box: Box) -> Iterator[Finding]:
    seen: set[int] = set()
    for folder in (box.state, box.models, box.root):
        try:
            device, disk = folder.stat().st_dev, os.statvfs(folder)
        except OSError as error:
            if folder != box.models:
                advice = "Deploy again."
                yield Finding(Level.CRITICAL, f"disk {folder}", f"{folder}: {error.strerror}.", advice)
            continue
        if device not in seen:
            seen.add(device)
            free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            yield findings.disk(str(folder), total, free, bool(disk.f_flag & os.ST_RDONLY))


def _clock_synchronised() -> bool | None:
    """What the kernel says, asked without changing anything (adjtimex with no modes)."""
    try:
        state: Any = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_NOT_SYNCHRONISED
