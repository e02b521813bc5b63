"""Make a folder hold given files: what differs, and doing it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FILE_MODE = 0o644
_SCRIPT_MODE = 0o755
_FOLDER_MODE = 0o755


@dataclass(frozen=True)
class Change:
    """A file to write, or to remove where ``removes``."""

    name: str
    sentence: str
    removes: bool = False


def plan_changes(folder: Path, files: Mapping[str, str]) -> list[Change]:
    """What must be done so that the folder holds the files. Raises OSError where it can't be read."""
    changes = []
    for name, content in sorted(files.items()):
        why = _why_to_write(folder / name, content, _mode(name))
        if why is not None:
            changes.append(Change(name, f"file {folder / name}: {why}"))
    strays = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.is_file())
    return changes + [
        Change(name, f"file {folder / name}: not part of the package, removed", removes=True)
        for name in strays
        if name not in files
    ]


def _why_to_write(path: Path, content: str, mode: int) -> str | None:
    try:
        if path.read_bytes() != content.encode():
            return "content differs, rewritten"
        return None if path.stat().st_mode & 0o777 == mode else "mode differs, rewritten"
    except FileNotFoundError:
        return "missing, created"


def _mode(name: str) -> int:
    """The thin scripts lie beside the package and can be executed; the package's files are only read."""
    return _FILE_MODE if "/" in name else _SCRIPT_MODE


def install(folder: Path, files: Mapping[str, str], changes: Sequence[Change]) -> None:
    """Carry the changes out. Raises OSError where the folder can't be written."""
    for change in changes:
        path = folder / change.name
        if change.removes:
            path.unlink(missing_ok=True)
        else:
            _make_folders(path.parent)
            _write(path, files[change.name], _mode(change.name))


def _make_folders(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(_FOLDER_MODE)


def _write(path: Path, content: str, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
