"""What was being done to each engine, on disk, so that a crash at any moment can be made good.

One small file per service, replaced atomically and fsynced with its folder. A damaged or missing file means
that nothing is known: the engine is then treated as offloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from wake_router.durable import read_json, replace_file
from wake_router.lifecycle import Depth, Record, Step

SCHEMA_VERSION: Final = 1


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
            return _parse(read_json(self.path(service)))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, service: str, record: Record) -> None:
        """Replace what is known; on the disk when this returns. Raises DurableWriteError."""
        replace_file(self.path(service), json.dumps(_render(service, record), indent=1).encode())


def _render(service: str, record: Record) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "service": service,
        "incarnation": record.incarnation,
        "depth": record.depth.value,
        "open_step": record.open_step.value if record.open_step else None,
        "proven": record.proven,
    }


def _parse(document: dict[str, Any]) -> Record | None:
    if document["schema_version"] != SCHEMA_VERSION or not isinstance(document["incarnation"], str):
        return None
    open_step, proven = document["open_step"], document.get("proven", True)
    return Record(
        incarnation=document["incarnation"],
        depth=Depth(document["depth"]),
        open_step=None if open_step is None else Step(open_step),
        proven=proven is True,
    )
