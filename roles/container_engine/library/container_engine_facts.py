#!/usr/bin/python
"""Find out which Docker a box has, and decide what it still takes."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError, last_lines
from ansible.module_utils.container_engine_rules import Found, decide, packages_of

DOCUMENTATION = r"""
module: container_engine_facts
short_description: Find out which Docker a box has, and decide what it still takes
description:
  - Changes nothing. Fails with one sentence when a box can't be made to fit.
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    required: true
  install:
    description: Whether something may be installed.
    type: bool
    required: true
  wheel_machines:
    description: For which machines there is a wheel with Compose.
    type: dict
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Look at Docker
  container_engine_facts:
    docker_host: unix:///var/run/docker.sock
    install: false
    wheel_machines: {}
"""

RETURN = r"""
decision:
  description: What it takes, with C(packages), C(compose_from_wheel) and C(start).
  returned: always
  type: dict
packages:
  description: All packages that bring Docker on this distribution; empty where that isn't known.
  returned: always
  type: list
  elements: str
found:
  description: What is there.
  returned: always
  type: dict
"""


def _answer(*command: str) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def look(docker_host: str) -> Found:
    """Ask the box."""
    release = platform.freedesktop_os_release()
    found = Found(
        distribution=release.get("ID", "unknown"),
        distribution_version=release.get("VERSION_ID", "0"),
        machine=platform.machine(),
        client=_answer("docker", "--version"),
        compose=_answer("docker", "compose", "version", "--short"),
        daemon_program=shutil.which(
            "dockerd", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        )
        is not None,
        daemon=None,
        daemon_error="",
        docker_host=docker_host,
    )
    if found.client is None:
        return found
    try:
        answer = Docker(docker_host).run("version", "--format", "{{.Server.Version}}")
    except DockerError as error:
        return replace(found, daemon_error=str(error))
    if answer.returncode == 0:
        return replace(found, daemon=answer.stdout.strip())
    return replace(found, daemon_error=last_lines(answer.stderr, 1))


def main() -> None:
    """Answer with what is there and what it takes."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "required": True},
            "install": {"type": "bool", "required": True},
            "wheel_machines": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    if not Path("/etc/os-release").exists() and not Path("/usr/lib/os-release").exists():
        module.fail_json(
            msg="The box has no /etc/os-release, so its distribution is unknown; Debian or Ubuntu is needed."
        )
    found = look(module.params["docker_host"])
    decision = decide(found, install=module.params["install"], wheel_machines=module.params["wheel_machines"])
    if decision.refusal:
        module.fail_json(msg=decision.refusal)
    packages = packages_of(found.distribution, found.distribution_version) or []
    module.exit_json(changed=False, found=asdict(found), decision=asdict(decision), packages=packages)


if __name__ == "__main__":
    main()
