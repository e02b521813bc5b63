#!/usr/bin/python
"""Say which services must make room for the probes of GPUs, make it, and give it back."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_room_run import Room, RoomError, give_back, look, make
from ansible.module_utils.gpu_diag_router import Admin, RouterError

DOCUMENTATION = r"""
module: gpu_diag_room
short_description: Make room on the GPUs for the probes
description:
  - A probe needs 2 GiB of free memory on each GPU. Services that are awake on a GPU with less must make room.
  - C(seen) says which, and changes nothing. C(made) cordons their devices, so that no request wakes them
    meanwhile, puts them to sleep through the router's admin listener, and waits for the memory. C(given_back)
    uncordons these devices - requests wake the services again.
  - A router that does not answer is an error only where room must be made.
options:
  root:
    description: Absolute folder of the deployed instance, with the router's settings and the admin token.
    type: path
    required: true
  state:
    description: What to do.
    type: str
    choices: [seen, made, given_back]
    required: true
  timeout_seconds:
    description: How long to wait for all services to sleep and for the memory, in seconds.
    type: float
    default: 300
  services:
    description: For C(given_back), the services that C(made) put to sleep.
    type: list
    elements: str
    default: []
  devices:
    description: For C(given_back), the devices that C(made) cordoned.
    type: list
    elements: str
    default: []
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Make room
  gpu_diag_room:
    root: /opt/vllm-frontdoor/default
    state: made
"""

RETURN = r"""
lines:
  description: What was found and done, for people.
  returned: always
  type: list
  elements: str
services:
  description: The services that were (in check mode, would be) put to sleep.
  returned: success
  type: list
  elements: str
devices:
  description: The devices that were (in check mode, would be) cordoned.
  returned: success
  type: list
  elements: str
"""


def main() -> None:
    """Look, make or give back."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["seen", "made", "given_back"], "required": True},
            "timeout_seconds": {"type": "float", "default": 300},
            "services": {"type": "list", "elements": "str", "default": []},
            "devices": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    admin, nvidia_smi = Admin(Path(given["root"])), ("nvidia-smi",)
    try:
        if given["state"] == "seen":
            room = look(admin, nvidia_smi)[0]
        elif given["state"] == "made":
            room = make(admin, nvidia_smi, given["timeout_seconds"], module.check_mode)
        else:
            room = give_back(admin, Room([], given["services"], given["devices"]), module.check_mode)
    except (RoomError, RouterError) as error:
        module.fail_json(msg=f"{str(error)[:1].upper()}{str(error)[1:]}.")
    changed = given["state"] != "seen" and bool(room.services or room.devices)
    module.exit_json(changed=changed, lines=room.lines, services=room.services, devices=room.devices)


if __name__ == "__main__":
    main()
