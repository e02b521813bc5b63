"""A bundle as a file: written so that nobody sees half of it, verified, and taken apart."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ansible.module_utils.box_tools_files import write_json
from ansible.module_utils.bundle_manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    BundleError,
    Manifest,
    Member,
    check_complete,
    check_member,
    read,
    write,
)

_BLOCK_BYTES = 1 << 20


def write_archive(output: Path, manifest: Manifest, sources: Mapping[str, Path]) -> str:
    """Write the bundle beside its place and move it there; answers the SHA-256 of its manifest."""
    content = write(manifest)
    partial = output.with_name(f".{output.name}.partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
            described = tarfile.TarInfo(MANIFEST)
            described.size = len(content)
            archive.addfile(described, io.BytesIO(content))
            for name in sorted(manifest.members):
                _add(archive, name, sources[name])
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    return hashlib.sha256(content).hexdigest()


def _add(archive: tarfile.TarFile, name: str, source: Path) -> None:
    status = source.stat()
    described = tarfile.TarInfo(name)
    described.size, described.mtime, described.mode = status.st_size, status.st_mtime, 0o644
    with source.open("rb") as file:
        archive.addfile(described, file)


@contextmanager
def opened(bundle: Path) -> Iterator[tuple[Manifest, tarfile.TarFile, str]]:
    """A bundle's manifest, its archive and the SHA-256 of the manifest. Raises BundleError."""
    if not bundle.is_file():
        raise BundleError(f"The bundle {bundle} (frontdoor_bundle) is not on the box; copy it there.")
    try:
        with tarfile.open(bundle, "r:") as archive:
            first = archive.next()
            if first is None or first.name != MANIFEST or first.size > LARGEST_MANIFEST_BYTES:
                raise BundleError(
                    f"{bundle} is no bundle made by './box bundle': it begins with no manifest."
                )
            content = _file(archive, first).read()
            yield read(content, str(bundle)), archive, hashlib.sha256(content).hexdigest()
    except (tarfile.TarError, EOFError) as error:
        raise BundleError(f"The bundle {bundle} is damaged or cut off ({error}); copy it again.") from None


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(member)
    if file is None:
        raise BundleError(f"The bundle holds {member.name}, which is no file; don't use it.")
    return file


def verify(bundle: Path, manifest: Manifest, archive: tarfile.TarFile) -> None:
    """Read every byte of a bundle and compare. Raises BundleError that names the first wrong file."""
    seen: set[str] = set()
    for member in archive:
        if member.name == MANIFEST and not seen and member.offset == 0:
            continue
        if not member.isfile() or member.name in seen:
            raise BundleError(
                f"The bundle {bundle} holds {member.name[:80]!r} twice, or as no file; don't use it."
            )
        seen.add(member.name)
        found = _measured(_file(archive, member))
        check_member(member.name, found, manifest, str(bundle))
    check_complete(seen, manifest, str(bundle))


def _measured(file: IO[bytes]) -> Member:
    digest, size = hashlib.sha256(), 0
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    return Member(size, digest.hexdigest())


def measure(path: Path) -> Member:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return _measured(file)


def extract(archive: tarfile.TarFile, name: str, target: Path, expected: Member) -> None:
    """Write one file of a verified bundle, with its time. Raises BundleError where it changed meanwhile."""
    member = archive.getmember(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, file = hashlib.sha256(), _file(archive, member)
    with target.open("wb") as output:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            output.write(block)
    if digest.hexdigest() != expected.sha256:
        target.unlink()
        raise BundleError(
            f"The file {name} of the bundle changed while it was unpacked; copy the bundle again."
        )
    os.utime(target, (member.mtime, member.mtime))


def stream(archive: tarfile.TarFile, name: str, use: Callable[[IO[bytes]], None]) -> None:
    """Give one file of a verified bundle to `use`, without writing it anywhere."""
    use(_file(archive, archive.getmember(name)))


def is_verified(note: Path, bundle: Path, manifest_sha256: str) -> bool:
    """Whether this very file (by size, time and inode) was verified before."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(known == _note(bundle, manifest_sha256))


def remember_verified(note: Path, bundle: Path, manifest_sha256: str) -> None:
    """Note that this very file was verified."""
    write_json(note, _note(bundle, manifest_sha256))


def _note(bundle: Path, manifest_sha256: str) -> dict[str, object]:
    status = bundle.stat()
    stamp = {"size": status.st_size, "modified_ns": status.st_mtime_ns, "inode": status.st_ino}
    return {"bundle": str(bundle), "manifest": manifest_sha256, **stamp}
