#!/usr/bin/python
"""Put a model that was downloaded from a hub in its place, or keep it aside where its weights are wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
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

DOCUMENTATION = r"""
module: model_files_hub_place
short_description: Put a model that was downloaded in its place
description:
  - Moves a model whose files are all proven under its name, in one step, and records its commit and the
    SHA-256 of each file. Of a model that is there, only the files that were fetched anew are replaced; the
    wrong ones are kept aside.
options:
  root:
    description: Folder that holds the models.
    type: path
    required: true
  repository:
    description: Repository on the hub.
    type: str
    required: true
  revision:
    description: Revision that was fetched.
    type: str
    required: true
  name:
    description: Name of the model's folder.
    type: str
    required: true
  endpoint:
    description: Address of the hub; empty for the client's own.
    type: str
    default: ""
  outcome:
    description: What C(model_files_hub_run) returned.
    type: dict
    required: true
  weights:
    description: The verdict on the weights, as C(gpu_diag_weights) returned it; none for a repair.
    type: dict
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Put the model in place
  model_files_hub_place:
    root: /var/lib/vllm-frontdoor/models
    repository: owner/name
    revision: main
    name: name
    outcome: "{{ pulled.outcome }}"
"""

RETURN = r"""
kept_aside:
  description: Where damaged files are kept.
  returned: always
  type: list
  elements: str
msg:
  description: What was put in place, in a sentence.
  returned: always
  type: str
"""


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


def main() -> None:
    """Put it in place."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "endpoint": {"type": "str", "default": ""},
            "outcome": {"type": "dict", "required": True},
            "weights": {"type": "dict"},
        },
        supports_check_mode=False,
    )
    try:
        kept, message = place(module.params)
    except (PackageError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, kept_aside=kept, msg=message)


if __name__ == "__main__":
    main()
