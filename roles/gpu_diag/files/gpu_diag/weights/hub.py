"""Checksums that the hub's client recorded on this machine when it downloaded a file.

Two layouts (huggingface_hub 0.2x and 1.x). ``--local-dir`` leaves the commit, the etag and the time in
``.cache/huggingface/download/<file>.metadata``; a hub cache links ``snapshots/<commit>/<file>`` to
``blobs/<etag>``. The etag of a large file is its sha256 (64 digits), that of a small one its git blob id
(40 digits).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")
_LARGEST_METADATA_BYTES = 4096
# The client itself takes a file for unchanged up to this much after the time that it recorded.
_TOLERANCE_SECONDS = 1.0


@dataclass(frozen=True)
class Recorded:
    """A checksum, its algorithm (``sha256`` or ``git``), who recorded it, and when (seconds), if known."""

    algorithm: str
    digest: str
    source: str
    at_seconds: float | None = None

    def edited_since(self, mtime_ns: int) -> bool:
        """Whether the file was changed after the checksum was recorded, so that someone edited it."""
        return self.at_seconds is not None and mtime_ns / 1e9 > self.at_seconds + _TOLERANCE_SECONDS


def recorded_checksum(folder: Path, name: str) -> Recorded | None:
    """The checksum that was recorded for a file of a model folder, or None."""
    return _of_local_dir(folder, name) or _of_cache(folder / name)


def _of_local_dir(folder: Path, name: str) -> Recorded | None:
    metadata = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    try:
        with metadata.open("rb") as file:
            lines = file.read(_LARGEST_METADATA_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    if len(lines) < 3:
        return None
    try:
        moment = float(lines[2])
    except ValueError:
        return None
    return _checksum(lines[1].strip().strip('"'), "the hub client's metadata beside the model", moment)


def _of_cache(path: Path) -> Recorded | None:
    try:
        target = path.readlink()
    except OSError:
        return None
    if target.parent.name != "blobs":
        return None
    return _checksum(target.name, "the name of the hub cache's blob", None)


def _checksum(etag: str, source: str, at_seconds: float | None) -> Recorded | None:
    if _SHA256.fullmatch(etag):
        return Recorded("sha256", etag, source, at_seconds)
    if _GIT_BLOB.fullmatch(etag):
        return Recorded("git", etag, source, at_seconds)
    return None
