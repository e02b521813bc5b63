#!/usr/bin/python
"""Put a model that was downloaded from a hub in its place, or keep it aside where its weights are wrong."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.model_files_place import place
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
