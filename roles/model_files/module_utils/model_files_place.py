"""Put a model that was downloaded in its place, or keep it aside where its weights are wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.box_tools_files import write_json
from ansible.module_utils.model_files_folder import put_in_place, record_path, save_record
from ansible.module_utils.model_files_hub import (
    Record,
    check_outcome,
    failed_weights,
    load_record,
    record_document,
)
from ansible.module_utils.model_files_places import Places, readable_for_all
from ansible.module_utils.model_files_rules import PackageError


def place(asked: dict[str, Any]) -> tuple[list[str], str]:
    """Move what arrived; answers where damaged files are kept, and a sentence. Raises PackageError."""
    places = Places(Path(asked["root"]), asked["name"])
    before = load_record(places.record) if places.model.is_dir() else None
    outcome = asked["outcome"]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    check_outcome(outcome, before)
    kept = places.keep_damaged()
    if before is None:
        _check_weights(places, asked, stamp)
        readable_for_all(places.arriving)
        put_in_place(places.arriving, places.model, [])
        record = Record(
            asked["repository"], asked["revision"], outcome["commit"], asked["endpoint"], outcome["files"]
        )
        write_json(places.record, record_document(record))
    else:
        record = before
        kept += places.keep_replaced(outcome["files"], stamp)
        readable_for_all(places.arriving)
        bookkeeping = (f".cache/huggingface/download/{name}.metadata" for name in outcome["files"])
        there = [name for name in bookkeeping if (places.arriving / name).is_file()]
        put_in_place(places.arriving, places.model, [*there, *outcome["files"]])
    save_record(record_path(places.root, asked["name"]), places.model, record.files)
    places.clean_up()
    words = "put in place" if before is None else f"{len(outcome['files'])} files replaced"
    return kept, (
        f"model {asked['name']}: {words}, {outcome['bytes'] / 1e9:.2f} GB, {asked['repository']} at commit "
        f"{outcome['commit']}"
    )


def _check_weights(places: Places, asked: dict[str, Any], stamp: str) -> None:
    why = failed_weights(asked["weights"], asked["repository"])
    if why is not None:
        kept = places.keep_model(stamp)
        places.clean_up()
        raise PackageError(f"{why} It is kept in {kept}; remove it when you have looked at it.")
