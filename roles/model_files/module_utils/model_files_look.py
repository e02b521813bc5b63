"""Look what it takes to have a model from a hub."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.model_files_folder import inspect, record_path, save_record
from ansible.module_utils.model_files_hub import Decision, Wanted, check_wanted, decide, load_record
from ansible.module_utils.model_files_places import Places


def look(root: Path, wanted: Wanted, *, rehash: bool, check_mode: bool) -> Decision:
    """Compare what is there with what was recorded. Raises PackageError."""
    check_wanted(wanted)
    places = Places(root, wanted.name)
    record = load_record(places.record)
    wrong: dict[str, str] = {}
    if record is not None and places.model.is_dir():
        wrong, hashes = inspect(root, wanted.name, record.files, rehash=rehash)
        if hashes and not wrong and not check_mode:
            save_record(record_path(root, wanted.name), places.model, record.files)
    is_there = places.model.exists() or places.model.is_symlink()
    found: Decision = decide(wanted, folder=places.model, is_there=is_there, record=record, wrong=wrong)
    return found
