#!/usr/bin/python
"""Make sure that a Docker daemon answers, or stop one that was started directly."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker
from ansible.module_utils.container_engine_process import (
    DaemonError,
    clear_away,
    init_system,
    make_bridge,
    running_daemon,
    start_detached,
    stop,
    tail,
    wait_for,
)
from ansible.module_utils.container_engine_rules import (
    bridge_name,
    daemon_command,
    mounts_within,
    ways_to_start,
)

DOCUMENTATION = r"""
module: container_engine_daemon
short_description: Make sure that a Docker daemon answers, or stop one that was started directly
description:
  - A daemon that answers is left alone. One that doesn't is started with the init system; where none runs, or
    for a daemon with folders of its own, it is started directly, detached, with a pid file and a log.
  - A daemon with folders of its own gets a bridge of its own too, so that it does not take C(docker0) away
    from the usual one.
  - C(stopped) stops only a daemon that was started directly, found by its own pid file, and removes the
    bridge and the mounts that it leaves.
options:
  docker_host:
    description: Address that the daemon listens at.
    type: str
    required: true
  state:
    description: What is wanted.
    type: str
    choices: [answering, stopped]
    default: answering
  data_root:
    description: Folder for images and containers; empty for Docker's own.
    type: str
    default: ""
  exec_root:
    description: Folder for the daemon's run-time files; used together with C(data_root).
    type: str
    default: ""
  pid_file:
    description: Pid file of a daemon that is started directly.
    type: path
    required: true
  log_file:
    description: Log of a daemon that is started directly.
    type: path
    required: true
  options:
    description: Further options of C(dockerd).
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: How long to wait for the daemon's answer or end, in seconds.
    type: int
    default: 60
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Make sure of a second daemon beside the usual one
  container_engine_daemon:
    docker_host: unix:///srv/docker/docker.sock
    data_root: /srv/docker/data
    exec_root: /srv/docker/exec
    pid_file: /srv/docker/docker.pid
    log_file: /srv/docker/docker.log
"""

RETURN = r"""
way:
  description: How the daemon was started (C(systemd), C(sysv) or C(directly)); empty when it wasn't.
  returned: always
  type: str
"""


def _start_as_service(way: str) -> str:
    """Start the packages' service; answers what the init system said when it couldn't, empty otherwise."""
    commands = {"systemd": ["systemctl", "start", "docker"], "sysv": ["service", "docker", "start"]}
    try:
        answer = subprocess.run(commands[way], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        ""
        if answer.returncode == 0
        else (answer.stderr.strip() or answer.stdout.strip() or "no reason given")
    )


def make_sure(docker: Docker, asked: dict[str, Any]) -> str:
    """Start the daemon; answers the way that worked. Raises DaemonError."""
    said = ""
    seconds = float(asked["timeout_seconds"])
    ways: list[str] = ways_to_start(init_system(), own_folders=bool(asked["data_root"]))
    for way in ways:
        if way == "directly":
            _start_directly(docker, asked, seconds)
            return way
        said = _start_as_service(way)
        if not said and wait_for(lambda: docker.unreachable() is None, lambda: False, seconds):
            return way
    raise DaemonError(
        f"{docker.unreachable()} Starting its service did not help: "
        f"{said or 'the service runs, but does not answer.'} "
        "See 'journalctl -u docker' on the box."
    )


def _start_directly(docker: Docker, asked: dict[str, Any], seconds: float) -> None:
    pid_file, log = Path(asked["pid_file"]), Path(asked["log_file"])
    pid = running_daemon(pid_file)
    if pid is not None:
        raise DaemonError(
            f"A Docker daemon (process {pid}, {pid_file}) runs but does not answer at {docker.host}; the "
            "last lines of its "
            f"log {log} are:\n{tail(log)}"
        )
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    socket = Path(docker.host.removeprefix("unix://"))
    socket.parent.mkdir(parents=True, exist_ok=True)
    command = daemon_command(
        host=docker.host,
        data_root=asked["data_root"],
        exec_root=asked["exec_root"],
        pid_file=str(pid_file),
        options=asked["options"],
    )
    if asked["data_root"]:
        make_bridge(bridge_name(docker.host))
    process = start_detached(command, log)
    if not wait_for(lambda: docker.unreachable() is None, lambda: process.poll() is not None, seconds):
        ended = process.poll()
        how = f"ended with code {ended}" if ended is not None else f"did not answer within {seconds:.0f} s"
        raise DaemonError(
            f"The Docker daemon for {docker.host} {how}; the last lines of its log {log} are:\n{tail(log)}"
        )


def own_mounts(asked: dict[str, Any]) -> list[str]:
    """What is mounted in the folders of a daemon that has some of its own, the innermost first."""
    if not asked["data_root"]:
        return []
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    found: list[str] = mounts_within(mountinfo, [asked["data_root"], asked["exec_root"]])
    return found


def main() -> None:
    """Start or stop."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["answering", "stopped"], "default": "answering"},
            "data_root": {"type": "str", "default": ""},
            "exec_root": {"type": "str", "default": ""},
            "pid_file": {"type": "path", "required": True},
            "log_file": {"type": "path", "required": True},
            "options": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    asked = module.params
    docker = Docker(asked["docker_host"])
    try:
        if asked["state"] == "stopped":
            pid_file = Path(asked["pid_file"])
            there = running_daemon(pid_file) is not None
            if there and not module.check_mode:
                stop(pid_file, float(asked["timeout_seconds"]))
            left = own_mounts(asked)
            if asked["data_root"] and not module.check_mode:
                clear_away(bridge_name(docker.host), left)
            module.exit_json(changed=there or bool(left), way="")
        if docker.unreachable() is None:
            module.exit_json(changed=False, way="")
        way = "" if module.check_mode else make_sure(docker, asked)
    except (DaemonError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, way=way)


if __name__ == "__main__":
    main()
