"""Files that are whole or absent, and on the disk when a call returns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class DurableWriteError(Exception):
    """A file can't be written; the message says why and what to do."""


def read_json(path: Path) -> Any:
    """The document in a file; raises OSError or ValueError."""
    return json.loads(path.read_bytes())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and fsync it with its folder; raises DurableWriteError."""
    draft = path.with_suffix(".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _fsync_folder(path.parent)
    except OSError as error:
        raise DurableWriteError(
            f"{path} can't be written: {error.strerror}. Make room, or let the router's user own it."
        ) from None


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, and fsync its folder; raises DurableWriteError."""
    try:
        path.unlink()
        _fsync_folder(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DurableWriteError(
            f"{path} can't be removed: {error.strerror}. Let the router's user own its folder."
        ) from None


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
