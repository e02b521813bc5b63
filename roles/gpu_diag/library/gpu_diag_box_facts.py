#!/usr/bin/python
"""Discover the box: kernel, GPUs, Docker, ports, paths and the evidence that lies on it."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_box import Question, discover

DOCUMENTATION = r"""
module: gpu_diag_box_facts
short_description: Discover a GPU machine (or one without GPUs)
description:
  - Returns what the machine is, as data. Changes nothing, waits for nothing longer than 45 seconds, and
    works without Docker, without an NVIDIA driver and without root. What can't be known is null, and
    C(problems) says in sentences what was asked and did not answer.
options:
  docker_host:
    description: Address of the Docker daemon as the C(docker) command takes it; empty for its own default.
    type: str
    default: ""
  images:
    description: References of images to look up.
    type: list
    elements: str
    default: []
  paths:
    description: Absolute paths to look at.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports to find the listener of.
    type: list
    elements: int
    default: []
  evidence:
    description: Folder that holds the evidence of the probes; empty for none.
    type: str
    default: ""
  instance:
    description: Containers that carry this value in the label C(vllm-frontdoor.instance) are returned.
    type: str
    default: ""
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look at the box
  gpu_diag_box_facts:
    paths: [/var/lib/vllm-frontdoor/models]
    ports: [8000]
  register: discovered
"""

RETURN = r"""
box:
  description: >-
    The box, schema version 1. Keys C(boot_id), C(kernel), C(kernel_command_line), C(hostname), C(cpu_count),
    C(memory_bytes), C(bios_version), C(iommu_group_types), C(acs_redirect), C(driver), C(gpus), C(docker),
    C(images), C(paths), C(ports), C(routes) (the default route is left out), C(containers), C(networks),
    C(evidence) (by kind, the newest first; of the weights the newest of each model folder), C(weights) (by
    model folder, whether the files are still those that were probed), C(suspicions) (marks that revoke
    evidence about GPUs) and C(problems).
  returned: always
  type: dict
"""


def main() -> None:
    """Answer with the box."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "images": {"type": "list", "elements": "str", "default": []},
            "paths": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "evidence": {"type": "str", "default": ""},
            "instance": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, box=discover(Question(**module.params)))


if __name__ == "__main__":
    main()
