#!/usr/bin/python
"""Make sure of an image from a registry, pinned by its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import BUILD_SECONDS, Docker, DockerError, digests_of, last_lines
from ansible.module_utils.engine_image_pins import (
    Pin,
    PinError,
    checked_digest,
    expected_digest,
    repository_of,
)
from ansible.module_utils.engine_image_record import load, remember

DOCUMENTATION = r"""
module: engine_image_registry
short_description: Make sure of an image from a registry, pinned by its digest
description:
  - Pulls the image when it isn't on the box. The digest that a person gives is enforced; otherwise the first
    one seen is recorded on the box, said, and enforced from then on.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  reference:
    description: Image with its tag.
    type: str
    required: true
  digest:
    description: Digest (C(sha256:…)) that the image must have; empty for the recorded one.
    type: str
    default: ""
  record:
    description: File on the box with the digests seen so far.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Make sure of the image
  engine_image_registry:
    reference: vllm/vllm-openai:v0.27.1
    record: /var/lib/vllm-frontdoor/images.json
"""

RETURN = r"""
digest:
  description: Digest of the image; empty when it isn't known yet (check mode).
  returned: always
  type: str
"""


def pull(docker: Docker, reference: str, expected: str) -> None:
    """Pull by digest where one is expected, by tag otherwise. Raises DockerError."""
    exact = f"{repository_of(reference)}@{expected}" if expected else reference
    answer = docker.run("pull", "--quiet", exact, seconds=BUILD_SECONDS)
    if answer.returncode != 0:
        raise DockerError(
            f"The image {exact} can't be pulled: {last_lines(answer.stderr, 2)} Is its registry reachable "
            "from the box, "
            "and does the version exist (engine_image_reference, engine_image_vllm_version, "
            "engine_image_digest)? Boxes "
            "without a registry set engine_image_source to archive."
        )
    if expected:
        docker.must(f"Naming the image {reference}", "tag", exact, reference)


def make_sure(docker: Docker, asked: dict[str, Any], *, check_mode: bool) -> tuple[bool, str]:
    """Pull if needed, check, record; answers (changed, digest)."""
    reference, record = asked["reference"], Path(asked["record"])
    pins = load(record)
    expected = expected_digest(reference, asked["digest"], pins)
    image = docker.image(reference)
    pulled = image is None
    if image is None:
        if check_mode:
            return True, expected
        pull(docker, reference, expected)
        image = docker.image(reference)
    if image is None:
        raise DockerError(f"Docker says it pulled {reference}, but doesn't have it.")
    digest = checked_digest(
        reference, expected, digests_of(image), given=bool(asked["digest"]), record=str(record)
    )
    pin = Pin(id=str(image["Id"]), digest=digest)
    if check_mode:
        return pins.get(reference) != pin, digest
    return remember(record, reference, pin) or pulled, digest


def main() -> None:
    """Make sure of the image."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "reference": {"type": "str", "required": True},
            "digest": {"type": "str", "default": ""},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    docker = Docker(module.params["docker_host"])
    unreachable = docker.unreachable()
    if unreachable is not None:
        if module.check_mode:
            module.exit_json(changed=True, digest="")
        module.fail_json(msg=unreachable)
    try:
        changed, digest = make_sure(docker, module.params, check_mode=module.check_mode)
    except (DockerError, PinError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=changed,
        digest=digest,
        msg=f"{module.params['reference']} is pinned to {digest or 'what comes first'}.",
    )


if __name__ == "__main__":
    main()
