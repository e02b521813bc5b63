#!/usr/bin/python
"""Say which images of a chain have to be made; makes none."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError, image_id
from ansible.module_utils.engine_image_chain import Step, to_build

DOCUMENTATION = r"""
module: engine_image_missing
short_description: Say which images of a chain have to be made
description:
  - Looks at the highest image first, so that a complete chain costs one look, and lower images that were
    cleaned away are not made again.
  - In check mode a box without Docker counts as one without images.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  steps:
    description: What C(engine_image_steps) returned.
    type: list
    elements: dict
    required: true
  made:
    description: >-
      Images that earlier tasks of this run have made. In check mode they only would have: this keeps an image
      that two recipes stand on from being predicted twice.
    type: list
    elements: str
    default: []
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look which images are missing
  engine_image_missing:
    steps: "{{ chain.steps }}"
"""

RETURN = r"""
missing:
  description: The steps to make, lowest first.
  returned: always
  type: list
  elements: dict
"""


def present_from_the_top(docker: Docker | None, steps: list[Step], made: list[str]) -> set[str]:
    """The highest image that is there; nothing below it matters. Without Docker only `made` counts."""
    for step in reversed(steps):
        if step.reference in made or (docker and image_id(docker.image(step.reference)) is not None):
            return {step.reference}
    return set()


def main() -> None:
    """Answer with what is missing."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "steps": {"type": "list", "elements": "dict", "required": True},
            "made": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    docker = Docker(module.params["docker_host"])
    steps = [Step(**step) for step in module.params["steps"]]
    unreachable = docker.unreachable()
    if unreachable is not None and not module.check_mode:
        module.fail_json(msg=unreachable)
    try:
        answering = docker if unreachable is None else None
        present = present_from_the_top(answering, steps, module.params["made"])
    except DockerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, missing=[step.document() for step in to_build(steps, present)])


if __name__ == "__main__":
    main()
