"""Which model files are not as they should be (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any


class PackageError(ValueError):
    """A package that is declared wrongly; the text is a sentence for people."""


@dataclass(frozen=True)
class Stamp:
    """What tells without reading that a file is the verified one: its size in bytes and its time in ns."""

    size: int
    modified_ns: int


@dataclass(frozen=True)
class Verified:
    """A file as it was when its SHA-256 was last computed."""

    sha256: str
    stamp: Stamp


def check_package(package: Mapping[str, Any]) -> None:
    """Raise PackageError when a package of model_files_packages can't be worked with."""
    name = str(package["name"])
    where = f"The package '{name}' in model_files_packages"
    if not name or "/" in name or name.startswith("."):
        raise PackageError(f"{where} needs a plain folder name as its name.")
    if not package["files"]:
        raise PackageError(f"{where} lists no files; list each with its sha256.")
    for path, sha256 in package["files"].items():
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise PackageError(
                f"{where} lists the file '{path}'; write a path relative to the model's folder."
            )
        if len(str(sha256)) != 64:
            raise PackageError(f"{where} lists '{path}' with '{sha256}', which is not a sha256 of 64 digits.")


def to_hash(
    files: Mapping[str, str], stamps: Mapping[str, Stamp], record: Mapping[str, Verified], *, rehash: bool
) -> list[str]:
    """Files whose content has to be read to know whether it is right.

    That is every file there is, unless it still has the size and the time of when it was verified.
    """
    return [
        path
        for path in sorted(files)
        if path in stamps and (rehash or path not in record or record[path].stamp != stamps[path])
    ]


def wrong_files(
    files: Mapping[str, str],
    stamps: Mapping[str, Stamp],
    record: Mapping[str, Verified],
    hashes: Mapping[str, str],
) -> dict[str, str]:
    """Why a file has to be made anew, by path. `hashes` was read just now, `record` before."""
    wrong: dict[str, str] = {}
    for path, sha256 in sorted(files.items()):
        if path not in stamps:
            wrong[path] = "is missing"
        elif (hashes[path] if path in hashes else record[path].sha256) != sha256:
            wrong[path] = "has other content than its checksum says"
    return wrong


def sentences(name: str, total: int, wrong: Mapping[str, str]) -> list[str]:
    """What is wrong with a model, for people; one line when nothing is there at all."""
    if len(wrong) == total and set(wrong.values()) == {"is missing"}:
        return [f"model {name}: not there, put in place"]
    return [f"model {name}: {path} {why}, restored" for path, why in wrong.items()]
