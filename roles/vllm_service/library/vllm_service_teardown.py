#!/usr/bin/python
"""Ansible module: stop an instance and remove what it left."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_teardown
short_description: Stop an instance and remove what it left
description:
  - Removes the containers and networks that carry the instance's label, and nothing else.
  - Removes folders and images only when they are named; those that instances share, only when this one is the
    last on the machine.
  - Fails before anything is removed where Docker is installed and does not answer, because the containers
    would come back with it. Where there is no Docker, there are no containers either.
options:
  instance:
    description: Name of the instance.
    type: str
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    required: true
  folders:
    description: Absolute paths of folders to remove.
    type: list
    elements: path
    default: []
  shared_folders:
    description: Absolute paths of folders to remove when no other instance is on the machine.
    type: list
    elements: path
    default: []
  shared_images:
    description: Repositories whose images, all tags of them, are removed with the last instance.
    type: list
    elements: str
    default: []
  instances:
    description: The folder that the folders of all instances lie in.
    type: path
    default: /opt/vllm-frontdoor
"""

EXAMPLES = r"""
- name: Stop the rehearsal
  vllm_service_teardown:
    instance: rehearsal
    docker_host: unix:///var/run/docker.sock
"""

RETURN = r"""
changes:
  description: What was removed, one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["container vllm-frontdoor-rehearsal-text: removed"]
last_instance:
  description: Whether no other instance is on the machine.
  returned: success
  type: bool
"""

DOCKER_TIMEOUT_SECONDS = 120
UNITS = Path("/etc/systemd/system")


class DockerError(Exception):
    """What Docker refused to do: one sentence."""


class Docker:
    """The few questions and orders that this module has for the daemon."""

    def __init__(self, host: str) -> None:
        self.host = host

    def lines(self, *arguments: str) -> list[str]:
        """Output lines of a docker command; raises DockerError when it fails."""
        command = ["docker", "--host", self.host, *arguments]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=DOCKER_TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DockerError(f"'docker {arguments[0]}' could not be run: {error}") from error
        if result.returncode:
            raise DockerError(f"'docker {arguments[0]}' failed: {result.stderr.strip()[-400:]}")
        return result.stdout.splitlines()

    def require_answer(self) -> None:
        """Raises DockerError when the daemon does not answer."""
        try:
            self.lines("version", "--format", "{{.Server.Version}}")
        except DockerError as error:
            raise DockerError(
                "Docker does not answer, and its containers would come back when it is started: "
                f"start Docker, then run this again ({error})"
            ) from error

    def labelled(self, kind: str, instance: str) -> list[str]:
        """Names of the containers or networks of an instance, in order."""
        label = f"label=vllm-frontdoor.instance={instance}"
        if kind == "network":
            return sorted(self.lines("network", "ls", "--filter", label, "--format", "{{.Name}}"))
        return sorted(self.lines("ps", "--all", "--filter", label, "--format", "{{.Names}}"))

    def tags(self, repository: str) -> list[str]:
        """All tags of the images of a repository."""
        found = self.lines("image", "ls", "--format", "{{json .}}", repository)
        images = [json.loads(line) for line in found]
        return sorted(f"{image['Repository']}:{image['Tag']}" for image in images)


def remove_from_docker(docker: Docker, instance: str, images: list[str], check_mode: bool) -> list[str]:
    """Remove containers, then networks, then images; returns what was (or would be) removed."""
    orders: list[tuple[str, tuple[str, ...]]] = [
        (f"container {name}", ("rm", "--force", "--volumes", name))
        for name in docker.labelled("container", instance)
    ]
    orders += [(f"network {name}", ("network", "rm", name)) for name in docker.labelled("network", instance)]
    orders += [
        (f"image {tag}", ("image", "rm", "--force", tag)) for name in images for tag in docker.tags(name)
    ]
    for _, order in orders:
        if not check_mode:
            docker.lines(*order)
    return [f"{what}: removed" for what, _ in orders]


def remove_unit(instance: str, units: Path, check_mode: bool) -> list[str]:
    """Remove the unit that clears the engines at each boot, where there is one."""
    path = units / f"vllm-frontdoor-{instance}-clearance.service"
    if not path.is_file():
        return []
    if not check_mode:
        command = ["systemctl", "disable", "--now", path.name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DOCKER_TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DockerError(f"the unit {path.name} could not be disabled: {error}") from error
        if done.returncode:
            raise DockerError(f"the unit {path.name} could not be disabled: {done.stderr.strip()}")
        path.unlink()
    return [f"unit {path.name}: removed"]


def remove_folders(folders: list[str], check_mode: bool) -> list[str]:
    """Remove folders that exist; returns what was (or would be) removed."""
    existing = [folder for folder in folders if Path(folder).exists()]
    for folder in existing:
        if not check_mode:
            shutil.rmtree(folder)
    return [f"folder {folder}: removed" for folder in existing]


def other_instances(folder: Path, instance: str) -> list[str]:
    """Names of the instances on the machine beside this one."""
    return sorted(path.name for path in folder.glob("*") if path.is_dir() and path.name != instance)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "docker_host": {"type": "str", "required": True},
            "folders": {"type": "list", "elements": "path", "default": []},
            "shared_folders": {"type": "list", "elements": "path", "default": []},
            "shared_images": {"type": "list", "elements": "str", "default": []},
            "instances": {"type": "path", "default": "/opt/vllm-frontdoor"},
        },
        supports_check_mode=True,
    )
    docker = Docker(module.params["docker_host"])
    others = other_instances(Path(module.params["instances"]), module.params["instance"])
    images = [] if others else module.params["shared_images"]
    folders = module.params["folders"] + ([] if others else module.params["shared_folders"])
    changes: list[str] = []
    installed = shutil.which("docker") is not None
    try:
        if installed:
            docker.require_answer()
            changes += remove_from_docker(docker, module.params["instance"], images, module.check_mode)
        changes += remove_unit(module.params["instance"], UNITS, module.check_mode)
        changes += remove_folders(folders, module.check_mode)
    except (DockerError, OSError) as error:
        module.fail_json(msg=f"The instance '{module.params['instance']}' is not fully removed: {error}")
    module.exit_json(changed=bool(changes), changes=changes, last_instance=not others)


if __name__ == "__main__":
    main()
