#!/usr/bin/python
"""Stop engines that may not go on: their device or its path failed its test."""

from __future__ import annotations

import subprocess

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_stop
short_description: Stop named containers
description:
  - Stops containers that run, and leaves them there. In check mode it says what it would stop.
options:
  docker_host:
    description: Address of the Docker daemon as the C(docker) command takes it.
    type: str
    required: true
  containers:
    description: By name of a container, the reason.
    type: dict
    required: true
  timeout_seconds:
    description: How long a container may take to end before it is killed.
    type: int
    default: 60
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Stop what may not go on
  vllm_service_stop:
    docker_host: unix:///var/run/docker.sock
    containers: {vllm-frontdoor-default-text: the integrity test says corrupt}
"""

RETURN = r"""
changes:
  description: A sentence for each container that was (in check mode, would be) stopped.
  returned: always
  type: list
  elements: str
"""

_MARGIN_SECONDS = 60


def stop(docker_host: str, name: str, timeout_seconds: int) -> str | None:
    """Stop one container; None when it is done, else why not."""
    command = ["docker", "--host", docker_host, "stop", "--time", str(timeout_seconds), name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_seconds + _MARGIN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"docker did not stop it within {timeout_seconds + _MARGIN_SECONDS} s"
    except OSError as error:
        return f"docker can't be run: {error.strerror}"
    return None if done.returncode == 0 else done.stderr.strip() or f"docker ended with {done.returncode}"


def main() -> None:
    """Stop them all; fail after all were tried."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "required": True},
            "containers": {"type": "dict", "required": True},
            "timeout_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    reasons = module.params["containers"]
    problems = []
    if not module.check_mode:
        for name in sorted(reasons):
            problem = stop(module.params["docker_host"], name, module.params["timeout_seconds"])
            problems += [f"container {name}: {problem}"] if problem else []
    changes = [f"container {name}: {reasons[name]}, stopped" for name in sorted(reasons)]
    if problems:
        module.fail_json(msg=f"Engines that may not go on can't be stopped: {'; '.join(problems)}")
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
