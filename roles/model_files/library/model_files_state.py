#!/usr/bin/python
"""Say which models are not as they should be."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.model_files_folder import inspect, record_path, save_record
from ansible.module_utils.model_files_rules import PackageError, check_package, sentences

DOCUMENTATION = r"""
module: model_files_state
short_description: Say which models are not as they should be
description:
  - Compares each file with its SHA-256. A file that still has the size and time of when it was verified is
    not read again. Changes no model.
options:
  root:
    description: Folder that holds the models.
    type: path
    required: true
  packages:
    description: The packages as the role's C(model_files_packages) describes them.
    type: list
    elements: dict
    required: true
  rehash:
    description: Whether every file is read, whatever its size and time say.
    type: bool
    default: false
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look at the models
  model_files_state:
    root: /var/lib/vllm-frontdoor/models
    packages: "{{ model_files_packages }}"
"""

RETURN = r"""
wrong:
  description: The packages that need work.
  returned: always
  type: list
  elements: dict
changes:
  description: Why, in sentences.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    """Answer with the packages that need work."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "packages": {"type": "list", "elements": "dict", "required": True},
            "rehash": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    needed, changes = [], []
    try:
        for package in module.params["packages"]:
            check_package(package)
            name, files = package["name"], package["files"]
            wrong, hashes = inspect(root, name, files, rehash=module.params["rehash"])
            if wrong:
                needed.append(package)
                changes += sentences(name, len(files), wrong)
            elif hashes and not module.check_mode:
                # Copied or touched files that proved right need not be read the next time.
                save_record(record_path(root, name), root / name, files)
    except (PackageError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, wrong=needed, changes=changes)


if __name__ == "__main__":
    main()
