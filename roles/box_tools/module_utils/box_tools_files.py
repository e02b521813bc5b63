"""Files: digests of content and of trees, and writing so that nobody ever sees half a file."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    running = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            running.update(block)
    return running.hexdigest()


def files_below(root: Path) -> Iterator[Path]:
    """Every file at or below `root` that a program consists of: Python's byte code is left out."""
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def tree_digest(root: Path) -> str:
    """SHA-256 over names, content and the executable bit of all files at or below `root`."""
    running = hashlib.sha256()
    for path in files_below(root):
        name = path.name if path == root else path.relative_to(root).as_posix()
        executable = bool(path.stat().st_mode & 0o100)
        running.update(f"{name}\0{executable}\0{sha256_of(path)}\n".encode())
    return running.hexdigest()


def write_json(path: Path, document: Any) -> None:
    """Write `document` to `path` at once, readable for all; its folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
