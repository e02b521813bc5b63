#!/usr/bin/python
"""Make sure of an image from an archive whose checksum is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import BUILD_SECONDS, Docker, DockerError, image_id, last_lines
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.engine_image_pins import Pin, PinError
from ansible.module_utils.engine_image_record import load, remember

DOCUMENTATION = r"""
module: engine_image_archive
short_description: Make sure of an image from an archive whose checksum is known
description:
  - Loads the archive (made by C(docker save)) unless the image is the one that it brought before.
  - The checksum is compared before anything is loaded.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  reference:
    description: Image that the archive holds.
    type: str
    required: true
  path:
    description: The archive on the box.
    type: path
    required: true
  sha256:
    description: SHA-256 of the archive in hexadecimal.
    type: str
    required: true
  record:
    description: File on the box with what was loaded so far.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Make sure of the image
  engine_image_archive:
    reference: vllm/vllm-openai:v0.27.1
    path: /srv/vllm-openai-v0.27.1.tar
    sha256: "{{ engine_image_archive_sha256 }}"
    record: /var/lib/vllm-frontdoor/images.json
"""

RETURN = r"""
id:
  description: Id of the image; empty when it isn't loaded yet (check mode).
  returned: always
  type: str
"""


def checked_archive(path: Path, sha256: str) -> Path:
    """The archive, if it is the right one. Raises PinError."""
    if not path.is_file():
        raise PinError(f"The archive {path} (engine_image_archive) is not on the box; copy it there.")
    found = sha256_of(path)
    if found != sha256:
        raise PinError(
            f"The archive {path} has the sha256 {found}, but engine_image_archive_sha256 says {sha256}; "
            "nothing was "
            "loaded. Copy the archive again, or correct the setting if the new one is wanted."
        )
    return path


def make_sure(docker: Docker, asked: dict[str, Any], *, check_mode: bool) -> tuple[bool, str]:
    """Load the archive if needed; answers (changed, image id)."""
    reference, record = asked["reference"], Path(asked["record"])
    sha256 = asked["sha256"].removeprefix("sha256:").lower()
    present = image_id(docker.image(reference))
    if present is not None and load(record).get(reference) == Pin(id=present, archive=sha256):
        return False, present
    archive = checked_archive(Path(asked["path"]), sha256)
    if check_mode:
        return True, ""
    said = docker.must(f"Loading {archive}", "load", "--input", str(archive), seconds=BUILD_SECONDS)
    loaded = image_id(docker.image(reference))
    if loaded is None:
        raise DockerError(
            f"The archive {archive} doesn't hold the image {reference} (engine_image_reference). Docker "
            "said: "
            f"{last_lines(said, 3)}"
        )
    return remember(record, reference, Pin(id=loaded, archive=sha256)) or loaded != present, loaded


def main() -> None:
    """Make sure of the image."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "reference": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    docker = Docker(module.params["docker_host"])
    unreachable = docker.unreachable()
    if unreachable is not None:
        if module.check_mode:
            module.exit_json(changed=True, id="")
        module.fail_json(msg=unreachable)
    try:
        changed, found = make_sure(docker, module.params, check_mode=module.check_mode)
    except (DockerError, PinError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, id=found)


if __name__ == "__main__":
    main()
