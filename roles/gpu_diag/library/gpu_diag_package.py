#!/usr/bin/python
"""Put the diagnostics' own package onto the box."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_install import install, plan_changes

DOCUMENTATION = r"""
module: gpu_diag_package
short_description: Keep the package gpu_diag on the box as it is in the role
description:
  - Writes the files that differ and removes Python files that don't belong there, in one step.
  - The action plugin of the same name reads the files of the role and hands them over.
options:
  dest:
    description: Absolute folder that holds the package and its scripts.
    type: path
    required: true
  files:
    description: Contents by path relative to C(dest). Given by the action plugin.
    type: dict
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Put the diagnostics onto the box
  gpu_diag_package:
    dest: /opt/vllm-frontdoor/default/diag
"""

RETURN = r"""
changes:
  description: A sentence for each file that was (in check mode, would be) written or removed.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    """Compare, and write what differs."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "files": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    folder, files = Path(module.params["dest"]), module.params["files"]
    try:
        changes = plan_changes(folder, files)
        if not module.check_mode:
            install(folder, files, changes)
    except OSError as error:
        module.fail_json(
            msg=f"{folder} can't be written ({error.strerror}): it is set by gpu_diag_install_dir, and the "
            "play needs `become: true` unless the folder belongs to its user"
        )
    module.exit_json(changed=bool(changes), changes=[change.sentence for change in changes])


if __name__ == "__main__":
    main()
