"""A copy of the repository as a user would have it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def copy_repository(folder: Path) -> Path:
    """Copy what git tracks (or would) to `folder`, with nothing prepared in it; answers `folder`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=_REPOSITORY, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.decode().split("\0")):
        source, target = _REPOSITORY / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder
