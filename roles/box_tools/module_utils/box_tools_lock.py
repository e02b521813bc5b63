"""Lock files of Python wheels: parse, select, digest, and find a wheel on disk that a lock admits (pure)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAME_AND_VERSION = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?![0-9a-f])")


class LockError(ValueError):
    """A lock that can't be used; the text is a sentence for people."""


@dataclass(frozen=True)
class Pin:
    """One distribution at one version, with the SHA-256 of every file that is accepted for it."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The requirement as pip reads it."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{each}" for each in self.hashes)])

    @property
    def has_local_version(self) -> bool:
        """Whether the version names a variant (``2.13.0+cpu``), which public indexes don't carry."""
        return "+" in self.version


def normalized(name: str) -> str:
    """The name as packaging tools compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str, source: str) -> list[Pin]:
    """Read pinned, hashed requirements from `text`.

    Raises LockError when a requirement is not pinned with ``==`` or carries no SHA-256.
    """
    joined = re.sub(r"\\\s*\n", " ", text)
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    pins = [_parse_line(line, source) for line in lines if line]
    if not pins:
        raise LockError(f"The lock {source} holds no requirement; write it anew with uv pip compile.")
    return pins


def _parse_line(line: str, source: str) -> Pin:
    match = _NAME_AND_VERSION.match(line)
    hashes = tuple(sorted(set(_HASH.findall(line))))
    if match is None or not hashes:
        raise LockError(
            f"The lock {source} has the line '{line[:80]}', which is not a version pinned with '==' and a "
            "sha256; "
            "write the lock anew with uv pip compile --generate-hashes."
        )
    return Pin(normalized(match["name"]), match["version"], hashes)


def select(pins: Sequence[Pin], only: Iterable[str], without: Iterable[str]) -> list[Pin]:
    """The pins named in `only` (all of them when it is empty), less those named in `without`, by name.

    Names that the lock doesn't hold are no error: what one version of a program needs, another may not.
    """
    wanted = {normalized(name) for name in only}
    unwanted = {normalized(name) for name in without}
    chosen = (pin for pin in pins if (not wanted or pin.name in wanted) and pin.name not in unwanted)
    return sorted(chosen, key=lambda pin: pin.name)


def digest(pins: Sequence[Pin]) -> str:
    """SHA-256 over names, versions and hashes; independent of order, comments and layout."""
    text = "\n".join(sorted(pin.line for pin in pins))
    return hashlib.sha256(text.encode()).hexdigest()


def may_be_wheel_of(pin: Pin, file_name: str) -> bool:
    """Whether `file_name` is a wheel of this name and version; its content is another question (PEP 427)."""
    parts = file_name.removesuffix(".whl").split("-")
    if not file_name.endswith(".whl") or len(parts) < 5:
        return False
    return normalized(parts[0]) == pin.name and parts[1].replace("_", "-") == pin.version.replace("_", "-")


def manylinux_platforms(machine: str, glibc_minor: int) -> list[str]:
    """Platform tags that a Linux with glibc 2.`glibc_minor` runs, newest first (PEP 600).

    pip takes each platform literally when it downloads for another system, so all are named.
    """
    numbered = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc_minor, 4, -1)]
    return [
        *numbered,
        *(f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")),
    ]
