"""A model's folder on disk: look, remember what was verified, put files in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.box_tools_files import sha256_of, write_json
from ansible.module_utils.model_files_rules import Stamp, Verified, to_hash, wrong_files


def record_path(root: Path, name: str) -> Path:
    """Where it is remembered what was verified of the model `name`; not in the model's own folder."""
    return root / ".verified" / f"{name}.json"


def stamp_of(path: Path) -> Stamp:
    """Size and time of a file."""
    status = path.stat()
    return Stamp(status.st_size, status.st_mtime_ns)


def stamps_of(folder: Path, files: Iterable[str]) -> dict[str, Stamp]:
    """Size and time of those of `files` that are there."""
    return {path: stamp_of(folder / path) for path in files if (folder / path).is_file()}


def load_record(path: Path) -> dict[str, Verified]:
    """What was verified before. A record that can't be read counts as none: then everything is read again."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {name: Verified(entry["sha256"], Stamp(**entry["stamp"])) for name, entry in document.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save_record(path: Path, folder: Path, hashes: Mapping[str, str]) -> None:
    """Remember that the files in `hashes` have these SHA-256 now."""
    verified = {name: Verified(sha256, stamp_of(folder / name)) for name, sha256 in hashes.items()}
    write_json(path, {name: asdict(entry) for name, entry in verified.items()})


def inspect(
    root: Path, name: str, files: Mapping[str, str], *, rehash: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """What is wrong with the files of a model, and the SHA-256 of those that had to be read."""
    folder = root / name
    stamps, record = stamps_of(folder, files), load_record(record_path(root, name))
    hashes = {path: sha256_of(folder / path) for path in to_hash(files, stamps, record, rehash=rehash)}
    return wrong_files(files, stamps, record, hashes), hashes


def put_in_place(staging: Path, folder: Path, files: Iterable[str]) -> None:
    """Move `files` from `staging` into `folder`, each at once; both are on one file system.

    A folder that is there is kept, so that containers which have it mounted see the restored files.
    """
    if not folder.exists():
        staging.replace(folder)
        return
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (staging / path).replace(folder / path)
