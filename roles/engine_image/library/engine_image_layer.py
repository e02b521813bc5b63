#!/usr/bin/python
"""Make an image: one layer with wheels and files on top of another image."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import BUILD_SECONDS, Docker, DockerError, last_lines
from ansible.module_utils.engine_image_chain import commit_changes

DOCUMENTATION = r"""
module: engine_image_layer
short_description: Put one layer on top of an image
description:
  - Runs a container without network that installs wheels (mounted, so none stays in the layer) and copies
    files, then commits it. Needs neither a builder nor a registry, and works with Docker 20.10 and newer.
  - Leaves no container behind. An image of that name that is already there is left alone.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  reference:
    description: Name of the image to make; its tag becomes the label C(vllm-frontdoor.content).
    type: str
    required: true
  parent:
    description: Image to stand on.
    type: str
    required: true
  script:
    description: Content of the program that fills the layer inside the container.
    type: str
    required: true
  wheels:
    description: What C(box_tools_wheels) returned as C(wheels).
    type: list
    elements: dict
    default: []
  wheels_folder:
    description: Folder on the box that holds these wheels.
    type: path
  layer:
    description: >-
      The layer as the role's argument C(engine_image_recipe.layers) describes it: C(files), C(labels),
      C(environment), C(user), C(workdir), C(entrypoint), C(cmd). The sources in C(files) lie on the box.
    type: dict
    default: {}
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Put a program on top of a base image
  engine_image_layer:
    reference: vllm-frontdoor/router:1
    parent: vllm-frontdoor/base:12
    script: "{{ lookup('ansible.builtin.file', 'prepare_layer.py') }}"
    layer:
      files: [{src: /srv/wake_router, dest: /opt/router/wake_router}]
      user: "10810:10810"
"""

RETURN = r"""
reference:
  description: Name of the image.
  returned: always
  type: str
"""


def lay_out(folder: Path, script: str, wheels: list[dict[str, Any]], copy: list[dict[str, Any]]) -> None:
    """Write into `folder` what the container finds at /mnt."""
    requirements = (
        " ".join(
            [f"{wheel['name']}=={wheel['version']}", *(f"--hash=sha256:{each}" for each in wheel["sha256s"])]
        )
        for wheel in wheels
    )
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    (folder / "prepare_layer.py").write_text(script, encoding="utf-8")
    for name in ("wheels", "copy"):
        (folder / name).mkdir()
    steps = []
    for number, each in enumerate(copy):
        source, target = Path(each["src"]), folder / "copy" / str(number)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, target)
        steps.append({"source": str(number), "dest": each["dest"]})
    document = {"wheels": bool(wheels), "copy": steps}
    (folder / "layer.json").write_text(json.dumps(document), encoding="utf-8")


def build(docker: Docker, asked: dict[str, Any]) -> None:
    """Fill a container, commit it, and remove it whatever happens."""
    reference = asked["reference"]
    key = reference.rsplit(":", 1)[1]
    container = f"vllm-frontdoor-building-{key}"
    # One that a lost connection left behind would hold the name.
    docker.remove_container(container)
    with tempfile.TemporaryDirectory(prefix="vllm-frontdoor-") as folder:
        lay_out(Path(folder), asked["script"], asked["wheels"], asked["layer"].get("files") or [])
        mounts = ["--volume", f"{folder}:/mnt:ro"]
        if asked["wheels"]:
            mounts += ["--volume", f"{asked['wheels_folder']}:/mnt/wheels:ro"]
        command = ["run", "--name", container, "--network", "none", "--user", "0", *mounts]
        command += ["--entrypoint", "", asked["parent"], "python3", "/mnt/prepare_layer.py"]
        try:
            filled = docker.run(*command, seconds=BUILD_SECONDS)
            if filled.returncode != 0:
                said = last_lines(filled.stdout + "\n" + filled.stderr)
                raise DockerError(
                    f"Making the image {reference} on {asked['parent']} failed; its last lines were:\n{said}"
                )
            changes = [part for each in commit_changes(asked["layer"], key) for part in ("--change", each)]
            docker.must(
                f"Keeping the image {reference}",
                "commit",
                *changes,
                container,
                reference,
                seconds=BUILD_SECONDS,
            )
        finally:
            docker.remove_container(container)


def main() -> None:
    """Make the image unless it is there."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "reference": {"type": "str", "required": True},
            "parent": {"type": "str", "required": True},
            "script": {"type": "str", "required": True},
            "wheels": {"type": "list", "elements": "dict", "default": []},
            "wheels_folder": {"type": "path"},
            "layer": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    reference = module.params["reference"]
    docker = Docker(module.params["docker_host"])
    try:
        if module.check_mode and docker.unreachable() is not None:
            module.exit_json(changed=True, reference=reference)
        if docker.image(reference) is not None:
            module.exit_json(changed=False, reference=reference)
        if not module.check_mode:
            build(docker, module.params)
    except (DockerError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, reference=reference)


if __name__ == "__main__":
    main()
