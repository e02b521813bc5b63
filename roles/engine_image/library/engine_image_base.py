#!/usr/bin/python
"""Make a base image: bootstrapped from the distribution's archive, or pulled."""

from __future__ import annotations

import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import BUILD_SECONDS, Docker, DockerError, last_lines
from ansible.module_utils.engine_image_chain import CONTENT_LABEL

DOCUMENTATION = r"""
module: engine_image_base
short_description: Make a base image
description:
  - Bootstraps a Debian with C(mmdebstrap) from the distribution's signed archive, or pulls a named image.
  - An image of that name that is already there is left alone.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  reference:
    description: Name of the image to make or to pull.
    type: str
    required: true
  pull:
    description: Whether the image is pulled instead of bootstrapped.
    type: bool
    default: false
  suite:
    description: Debian release to bootstrap.
    type: str
    default: bookworm
  mirror:
    description: Address of the archive; empty for the one that C(mmdebstrap) knows for the release.
    type: str
    default: ""
  packages:
    description: Packages beyond the minimal system.
    type: list
    elements: str
    default: []
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Bootstrap a base image
  engine_image_base:
    reference: vllm-frontdoor/base:12
    packages: [python3, python3-pip]
"""

RETURN = r"""
reference:
  description: Name of the image.
  returned: always
  type: str
"""


def bootstrap(docker: Docker, reference: str, suite: str, mirror: str, packages: list[str]) -> None:
    """Stream a new system into an image; the name is given only once the whole system has arrived."""
    if shutil.which("mmdebstrap") is None:
        raise DockerError(
            "mmdebstrap, which makes the base image, is not on the box: 'apt-get install mmdebstrap "
            "debian-archive-keyring', or set engine_image_install_tools: true, or name a base image to pull "
            "in "
            "engine_image_base.image."
        )
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    # Documentation and translations are a quarter of the image and of no use in it.
    command += ["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]
    command += [
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    ]
    command += [suite, "-", *([mirror] if mirror else [])]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
        ) as system:
            labels = f"LABEL {CONTENT_LABEL}={reference.rsplit(':', 1)[1]}"
            arguments = ("import", "--change", labels, "--change", 'CMD ["python3"]', "-")
            imported = docker.run(*arguments, seconds=BUILD_SECONDS, stdin=system.stdout)
        log.seek(0)
        said = last_lines(log.read().decode(errors="replace"), 12)
    image = imported.stdout.strip()
    if system.returncode != 0:
        if image:
            docker.run("image", "rm", image)
        raise DockerError(
            f"Bootstrapping Debian {suite} failed; is its archive reachable? mmdebstrap said:\n{said}"
        )
    if imported.returncode != 0:
        raise DockerError(f"Importing the base image failed: {last_lines(imported.stderr, 3)}")
    docker.must(f"Naming the image {reference}", "tag", image, reference)


def pull(docker: Docker, reference: str) -> None:
    """Pull a base image that is named in the settings."""
    answer = docker.run("pull", "--quiet", reference, seconds=BUILD_SECONDS)
    if answer.returncode != 0:
        raise DockerError(
            f"The base image {reference} (engine_image_base.image) can't be pulled: "
            f"{last_lines(answer.stderr, 2)} "
            "Is its registry reachable from the box? Leave the setting empty to bootstrap a base instead."
        )


def main() -> None:
    """Make the image unless it is there."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "reference": {"type": "str", "required": True},
            "pull": {"type": "bool", "default": False},
            "suite": {"type": "str", "default": "bookworm"},
            "mirror": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    reference = asked["reference"]
    docker = Docker(asked["docker_host"])
    try:
        if module.check_mode and docker.unreachable() is not None:
            module.exit_json(changed=True, reference=reference)
        if docker.image(reference) is not None:
            module.exit_json(changed=False, reference=reference)
        if module.check_mode:
            module.exit_json(changed=True, reference=reference)
        if asked["pull"]:
            pull(docker, reference)
        else:
            bootstrap(docker, reference, asked["suite"], asked["mirror"], asked["packages"])
    except DockerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, reference=reference)


if __name__ == "__main__":
    main()
