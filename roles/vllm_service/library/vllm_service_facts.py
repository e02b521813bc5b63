#!/usr/bin/python
"""Discover what model folders and calibration files on the box say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.frontdoor_model_facts import calibration_documents, model_facts

DOCUMENTATION = r"""
module: vllm_service_facts
short_description: Discover what model folders and calibration files say
description:
  - Reads the config of each model folder that is there, the size of its weights, and the files of measured
    memory. Changes nothing, and waits for no file system longer than 20 seconds.
options:
  folders:
    description: Absolute model folders.
    type: list
    elements: str
    default: []
  calibration:
    description: Absolute folder of the measured figures; it need not be there.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look into the model folders
  vllm_service_facts:
    folders: [/var/lib/vllm-frontdoor/models/m]
    calibration: /var/lib/vllm-frontdoor/default/calibration
"""

RETURN = r"""
models:
  description: >-
    By folder C(config) (whether there is one), C(attention_heads), C(context_tokens), C(weights_bytes) and
    C(problem). Folders that aren't there are left out.
  returned: always
  type: dict
calibration:
  description: By path C(document) or C(problem).
  returned: always
  type: dict
"""

_FILE_SYSTEM_SECONDS = 20.0

Json = dict[str, Any]


def bounded(read: Callable[[], Json]) -> Json | None:
    """What a function returns; None when its file system doesn't answer within 20 seconds."""
    answers: list[Json] = []
    thread = threading.Thread(target=lambda: answers.append(read()), daemon=True)
    thread.start()
    thread.join(_FILE_SYSTEM_SECONDS)
    return answers[0] if answers else None


def facts_of(folder: str) -> Json:
    """Facts on a folder; nothing where it isn't one."""
    path = Path(folder)
    try:
        return dict(model_facts(path)) if path.is_dir() else {}
    except OSError as error:
        return {**_UNKNOWN, "problem": f"{folder} can't be read: {error.strerror}"}


_UNKNOWN: Json = {
    "config": True,
    "attention_heads": None,
    "context_tokens": None,
    "weights_bytes": 0,
    "problem": None,
}


def discover(folders: list[str], calibration: str) -> Json:
    """The facts that the module returns."""
    models: dict[str, Any] = {}
    for folder in folders:
        answer = bounded(partial(facts_of, folder))
        if answer is None:
            models[folder] = {**_UNKNOWN, "problem": f"the file system of {folder} does not answer"}
        elif answer:
            models[folder] = answer
    documents = bounded(partial(calibration_documents, Path(calibration)))
    if documents is None:
        documents = {calibration: {"problem": "its file system does not answer"}}
    return {"models": models, "calibration": documents}


def main() -> None:
    """Answer with the facts."""
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "str", "default": []},
            "calibration": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **discover(module.params["folders"], module.params["calibration"]))


if __name__ == "__main__":
    main()
