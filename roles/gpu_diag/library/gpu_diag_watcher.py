#!/usr/bin/python
"""Keep the watcher of the kernel log and of the GPUs running, or end it."""

from __future__ import annotations

import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_watcher_run import Watcher, WatcherError, keep, stop

DOCUMENTATION = r"""
module: gpu_diag_watcher
short_description: Keep the watcher running that marks evidence about GPUs suspect
description:
  - A systemd unit where systemd runs, a plain process elsewhere. It is restarted when the package changed.
options:
  name:
    description: Name of the unit, without C(.service).
    type: str
    required: true
  package:
    description: Absolute folder that holds the package gpu_diag.
    type: path
    required: true
  evidence:
    description: Absolute folder of the evidence.
    type: path
    required: true
  router:
    description: Absolute folder of the deployed instance whose router is listened to; empty for none.
    type: str
    default: ""
  state:
    description: C(started) keeps it running, C(absent) ends it and removes its unit.
    type: str
    choices: [absent, started]
    default: started
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Watch the GPUs
  gpu_diag_watcher:
    name: vllm-frontdoor-default-watch
    package: /opt/vllm-frontdoor/default/diag
    evidence: /var/lib/vllm-frontdoor/default/evidence
"""

RETURN = r"""
changes:
  description: A sentence where it was (in check mode, would be) started or stopped.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    """Look, and start or end it."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "package": {"type": "path", "required": True},
            "evidence": {"type": "path", "required": True},
            "router": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["absent", "started"], "default": "started"},
        },
        supports_check_mode=True,
    )
    parameters = dict(module.params)
    act = {"absent": stop, "started": keep}[parameters.pop("state")]
    try:
        changes = act(Watcher(python=sys.executable, **parameters), module.check_mode)
    except WatcherError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
