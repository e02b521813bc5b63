#!/usr/bin/python
"""Give an image a second, friendly name."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError, image_id

DOCUMENTATION = r"""
module: engine_image_tag
short_description: Let a friendly name point at an image
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  reference:
    description: The image.
    type: str
    required: true
  tag:
    description: The friendly name; moved when it points elsewhere.
    type: str
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Name the image
  engine_image_tag:
    reference: vllm-frontdoor/engine-cpu:0123456789ab
    tag: vllm-frontdoor/engine-cpu:0.27.1
"""

RETURN = r"""
id:
  description: Id of the image; empty when it isn't there yet (check mode).
  returned: always
  type: str
"""


def main() -> None:
    """Move the name when it points elsewhere."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "reference": {"type": "str", "required": True},
            "tag": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    docker = Docker(module.params["docker_host"])
    reference, tag = module.params["reference"], module.params["tag"]
    try:
        if module.check_mode and docker.unreachable() is not None:
            module.exit_json(changed=True, id="")
        wanted, now = image_id(docker.image(reference)), image_id(docker.image(tag))
        if wanted is None and not module.check_mode:
            raise DockerError(f"The image {reference} is not on the box; was it removed just now? Run again.")
        if wanted != now and not module.check_mode:
            docker.must(f"Naming the image {tag}", "tag", reference, tag)
    except DockerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=wanted is None or wanted != now, id=wanted or "")


if __name__ == "__main__":
    main()
