"""``gpu_diag watch``: follow the kernel log, the GPUs' inventory and the router, and mark evidence suspect.

Runs on the host, needs no torch and no numpy. Marks are named after their event, so that reading the log
again after a restart changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_diag import exits
from gpu_diag.engine_events import follow
from gpu_diag.evidence import Json, explained, timestamp, write_atomically
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.hostfacts.gpu_diag_evidence_files import SUSPECT_FOLDER
from gpu_diag.hostfacts.gpu_diag_router import Admin
from gpu_diag.hostfacts.kernel_log import Event, parse_kernel_log
from gpu_diag.suspicion import Suspicion, from_event, from_inventories

_INVENTORY_SECONDS = 60.0
_RECORD_BYTES = 8192
KEPT_MARKS = 200
# Said once the log is open; whoever starts the watcher waits for it.
WATCHING = "watching "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--evidence", metavar="DIR", required=True, help="folder of evidence to mark")
    parser.add_argument("--kernel-log", metavar="FILE", default="/dev/kmsg", help="the log (%(default)s)")
    parser.add_argument("--router", metavar="DIR", help="folder of the deployed instance whose router tells")
    parser.add_argument("--once", action="store_true", help="read what is there, then end")


def run(arguments: argparse.Namespace) -> int:
    """Watch until interrupted (or once)."""
    box = discover(Question())
    gpus, boot_id = addresses(box), _text(box.get("boot_id"))
    folder = Path(arguments.evidence) / SUSPECT_FOLDER
    try:
        descriptor = os.open(arguments.kernel_log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise exits.CouldNotRunError(
            f"the kernel log {arguments.kernel_log} can't be read ({error.strerror}): run this as root"
        ) from error
    if arguments.router and not arguments.once:
        _listen_to_router(Admin(Path(arguments.router)), folder, boot_id)
    sys.stderr.write(f"{WATCHING}{arguments.kernel_log}\n")
    sys.stderr.flush()
    looked_at = time.monotonic()
    try:
        while True:
            lines = list(_available_lines(descriptor))
            for event in parse_kernel_log(lines):
                found = from_event(event, gpus)
                if found is not None:
                    leave_mark(folder, found, boot_id, moment_of(event))
            if arguments.once:
                return exits.CLEAN
            if time.monotonic() - looked_at > _INVENTORY_SECONDS:
                looked_at = time.monotonic()
                now = addresses(discover(Question()))
                for found in from_inventories(gpus, now):
                    leave_mark(folder, found, boot_id, datetime.now(UTC))
                gpus = now
            select.select([descriptor], [], [], 5.0)
            if not lines and not _is_device(arguments.kernel_log):
                time.sleep(1.0)  # a plain file is always readable
    finally:
        os.close(descriptor)


def _listen_to_router(admin: Admin, folder: Path, boot_id: str | None) -> None:
    """In a thread of its own, since a router that says nothing must not delay the kernel log."""

    def leave(found: Suspicion, at: datetime) -> None:
        leave_mark(folder, found, boot_id, at)

    arguments = (admin, lambda: slots(discover(Question())), leave)
    threading.Thread(target=follow, args=arguments, daemon=True).start()


def slots(box: Json) -> dict[str, str]:
    """PCI addresses of the GPUs of a box by UUID."""
    gpus = box.get("gpus")
    known = [(gpu.get("uuid"), gpu.get("pci_address")) for gpu in gpus] if isinstance(gpus, list) else []
    return {str(uuid): str(address) for uuid, address in known if uuid and address}


def _is_device(path: str) -> bool:
    return Path(path).is_char_device()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def addresses(box: Json) -> list[str]:
    """PCI addresses of the GPUs of a box."""
    gpus = box.get("gpus")
    found = [gpu.get("pci_address") for gpu in gpus] if isinstance(gpus, list) else []
    return [address for address in found if isinstance(address, str)]


def _available_lines(descriptor: int) -> Iterable[str]:
    """What can be read now. ``/dev/kmsg`` gives one record a read, and EPIPE where records were
    overwritten."""
    while True:
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:
            sys.stderr.write(
                "the kernel log was overwritten faster than it was read: events may be missing\n"
            )
            continue
        if not record:
            return
        yield from record.decode(errors="replace").splitlines()


def moment_of(event: Event) -> datetime:
    """When an event was; now, where its line doesn't say (a mark that is too late revokes rather too
    much)."""
    now = datetime.now(UTC)
    if event.seconds is None:
        return now
    return now - timedelta(seconds=max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - event.seconds))


def leave_mark(folder: Path, found: Suspicion, boot_id: str | None, at: datetime) -> bool:
    """Write the mark of a suspicion unless it is there already; the newest 200 are kept."""
    name = hashlib.sha256(f"{boot_id} {found.key}".encode()).hexdigest()[:24]
    with explained(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        existing = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        if any(path.stem == name for path in existing):
            return False
        write_atomically(folder / f"{name}.json", json.dumps(found.mark(boot_id, timestamp(at))) + "\n")
        for path in existing[: max(0, len(existing) + 1 - KEPT_MARKS)]:
            path.unlink(missing_ok=True)
    return True
