"""What was being done to each engine, on disk, so that a crash at any moment can be made good.

One small file per service. A file is replaced atomically and fsynced with its folder. A damaged or missing
file means that nothing is known: the engine is then treated as offloaded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from wake_router.lifecycle import Depth, Record, Step

SCHEMA_VERSION: Final = 1


class IntentStoreError(Exception):
    """The state folder can't be written; the message says why."""


class IntentStore:
    """The files under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, service: str) -> Path:
        """The file of one service."""
        return self._folder / f"{service}.json"

    def read(self, service: str) -> Record | None:
        """What is known about a service; None when the file is missing or damaged."""
        try:
            document = json.loads(self.path(service).read_bytes())
            return _parse(document)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, service: str, record: Record) -> None:
        """Replace what is known; on the disk when this returns. Raises IntentStoreError."""
        document = json.dumps(_render(service, record), indent=1).encode()
        target = self.path(service)
        draft = target.with_suffix(".draft")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
            _fsync_folder(self._folder)
        except OSError as error:
            raise IntentStoreError(
                f"{target} can't be written: {error.strerror}. Make room, or let the router's user own it."
            ) from None


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _render(service: str, record: Record) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "service": service,
        "incarnation": record.incarnation,
        "depth": record.depth.value,
        "open_step": record.open_step.value if record.open_step else None,
    }


def _parse(document: dict[str, Any]) -> Record | None:
    if document["schema_version"] != SCHEMA_VERSION or not isinstance(document["incarnation"], str):
        return None
    open_step = document["open_step"]
    return Record(
        incarnation=document["incarnation"],
        depth=Depth(document["depth"]),
        open_step=None if open_step is None else Step(open_step),
    )
