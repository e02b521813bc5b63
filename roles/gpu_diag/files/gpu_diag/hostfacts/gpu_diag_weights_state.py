"""Which files of a model folder a verdict on its weights was given on, and whether they are still those."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Raised when a rule of the weights probe changes: verdicts of an older version are then given anew.
WEIGHTS_TOOL_VERSION = "1.0.0"

# Verdicts that say nothing about the files but that the probe could not read them: always worth another try.
_RETRIED_CLASSES = ("io_error", "io_timeout", "could_not_run")
_MOST_FILES = 20_000

Json = dict[str, object]


class TooManyFilesError(ValueError):
    """The folder holds more files than any model has: probably not a model folder."""


def file_states(folder: str) -> dict[str, Json | None]:
    """Size in bytes, time of change in ns and inode of every file below a folder, by relative name.

    Hidden files and folders are left out. None stands for a link that leads nowhere.
    Raises OSError where the folder can't be read, TooManyFilesError beyond 20,000 files.
    """
    states: dict[str, Json | None] = {}
    _collect(Path(folder), "", states)
    return states


def _collect(folder: Path, prefix: str, states: dict[str, Json | None]) -> None:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            _collect(folder / entry.name, name + "/", states)
        elif not entry.is_dir():
            states[name] = _state(folder / entry.name)
        if len(states) > _MOST_FILES:
            raise TooManyFilesError(f"{folder} holds more than {_MOST_FILES} files: is it a model folder?")


def _state(path: Path) -> Json | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def same_file(recorded: object, state: Mapping[str, object] | None) -> bool:
    """Whether a record of a file was made of the file as it is now (by size, time of change and inode)."""
    if state is None or not isinstance(recorded, Mapping):
        return recorded is None and state is None
    return all(recorded.get(key) == state[key] for key in ("size", "mtime_ns", "inode"))


def why_not_current(document: Mapping[str, object], states: Mapping[str, Json | None]) -> list[str]:
    """Sentences on why a weights document no longer speaks of these files; none when it does."""
    details, tool = document.get("details"), document.get("tool")
    recorded = details.get("files") if isinstance(details, Mapping) else None
    if not isinstance(recorded, Mapping) or not isinstance(tool, Mapping):
        return ["the record can't be read"]
    if tool.get("version") != WEIGHTS_TOOL_VERSION:
        return [f"it was made by version {tool.get('version')} of the probe, this is {WEIGHTS_TOOL_VERSION}"]
    if document.get("class") in _RETRIED_CLASSES:
        return ["the files could not be read the last time"]
    return [
        *(f"{name} is new" for name in states if name not in recorded),
        *(f"{name} is gone" for name in recorded if name not in states),
        *(f"{n} was changed" for n, s in states.items() if n in recorded and not same_file(recorded[n], s)),
    ]
