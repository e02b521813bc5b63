"""Where a pulled model lies: under its name, while it is on its way, and what was damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


class Places:
    """All folders and files of one model below the folder of all models."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.model = root / name
        self.record = root / ".pulled" / f"{name}.json"
        # What is under way; on the same file system, so that moving the model into its place is one step.
        self.pulling = root / ".pulling" / name
        self.arriving = self.pulling / "model"
        self.damaged = self.pulling / "bad"
        self.bad = root / ".bad"
        self.kept_bad = self.bad / name

    def keep_damaged(self) -> list[str]:
        """Move what arrived damaged to where such files are kept; answers where each is."""
        if not self.damaged.is_dir():
            return []
        kept = []
        for path in sorted(path for path in self.damaged.rglob("*") if path.is_file()):
            target = self.kept_bad / path.relative_to(self.damaged)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            kept.append(str(target))
        return kept

    def keep_model(self, stamp: str) -> Path:
        """Move the whole model that arrived to where damaged things are kept."""
        self.bad.mkdir(parents=True, exist_ok=True)
        target = self.bad / f"{self.model.name}.bad-{stamp}"
        self.arriving.replace(target)
        return target

    def keep_replaced(self, names: Iterable[str], stamp: str) -> list[str]:
        """Move files of the model that proved wrong to where damaged ones are kept."""
        kept = []
        for name in names:
            path, target = self.model / name, self.kept_bad / f"{name}.bad-{stamp}"
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
                kept.append(str(target))
        return kept

    def clean_up(self) -> None:
        """Remove the folder of what was under way, and that of all such when it is empty."""
        shutil.rmtree(self.pulling, ignore_errors=True)
        if self.pulling.parent.is_dir() and not any(self.pulling.parent.iterdir()):
            self.pulling.parent.rmdir()


def readable_for_all(folder: Path) -> None:
    """Engines run as other users than the one who fetches."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
