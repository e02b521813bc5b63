#!/usr/bin/python
"""Say what it takes to have a model from a hub."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.model_files_hub import Wanted
from ansible.module_utils.model_files_look import look
from ansible.module_utils.model_files_rules import PackageError

DOCUMENTATION = r"""
module: model_files_hub_state
short_description: Say what it takes to have a model from a hub
description:
  - Checks what is asked for, and compares a model that is there with what was recorded when it was pulled. A
    file that still has the size and time of when it was verified is not read again. Changes no model.
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
    description: Branch, tag or commit; empty for the recorded one, or the hub's main one.
    type: str
    default: ""
  name:
    description: Name of the model's folder.
    type: str
    required: true
  endpoint:
    description: Address of the hub; empty for the client's own.
    type: str
    default: ""
  rehash:
    description: Whether every file is read, whatever its size and time say.
    type: bool
    default: false
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look at the model
  model_files_hub_state:
    root: /var/lib/vllm-frontdoor/models
    repository: owner/name
    name: name
"""

RETURN = r"""
action:
  description: C(nothing), C(pull) or C(repair).
  returned: always
  type: str
revision:
  description: Revision to fetch.
  returned: always
  type: str
only:
  description: Files to fetch; empty for all.
  returned: always
  type: list
  elements: str
changes:
  description: What is wrong, in sentences.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    """Answer with what is to be done."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "name": {"type": "str", "required": True},
            "endpoint": {"type": "str", "default": ""},
            "rehash": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    asked = module.params
    wanted = Wanted(asked["repository"], asked["revision"], asked["name"], asked["endpoint"])
    try:
        found = look(Path(asked["root"]), wanted, rehash=asked["rehash"], check_mode=module.check_mode)
    except (PackageError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=found.action != "nothing" and module.check_mode,
        action=found.action,
        revision=found.revision,
        only=list(found.only),
        changes=list(found.changes),
    )


if __name__ == "__main__":
    main()
