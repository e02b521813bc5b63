#!/usr/bin/python
"""Have the engine image's own argument parser read the commands of services, before anything is touched."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_arguments
short_description: Have an image's own argument parser read commands
description:
  - Starts a throw-away container without network, without GPU and with a read-only file system, in which
    vLLM's own parser reads the arguments of each service. Nothing else is started, and nothing on the box is
    changed but the record of the answers in C(cache), from which the same question is answered next time.
options:
  docker_host:
    description: Address of the Docker daemon as the C(docker) command takes it.
    type: str
    required: true
  image:
    description: Id of the image.
    type: str
    required: true
  commands:
    description: The arguments, a list for each service.
    type: dict
    required: true
  script:
    description: The Python program that runs in the image.
    type: str
    required: true
  cache:
    description: Absolute folder of the answers.
    type: path
    required: true
  name:
    description: Name of the container.
    type: str
    required: true
  timeout_seconds:
    description: How long the parser may take.
    type: int
    default: 300
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Ask the image
  vllm_service_arguments:
    docker_host: unix:///var/run/docker.sock
    image: sha256:0000000000000000000000000000000000000000000000000000000000000000
    commands: {text: ["--model", "/models/m"]}
    script: "{{ lookup('ansible.builtin.file', 'ask_arguments.py') }}"
    cache: /var/lib/vllm-frontdoor/default/arguments
    name: vllm-frontdoor-default-arguments
"""

RETURN = r"""
answer:
  description: >-
    C(version), C(sleep_mode) and C(problems) by service; C(failure) is a sentence where it can't be asked.
  returned: always
  type: dict
"""

_KEPT_ANSWERS = 50
_REMOVE_SECONDS = 30
_LONGEST_TAIL = 600


def container_command(parameters: dict[str, Any]) -> list[str]:
    """The command that runs the script in the image."""
    return [
        *("docker", "--host", parameters["docker_host"], "run", "--rm", "--interactive"),
        *("--name", parameters["name"], "--pull", "never", "--network", "none"),
        *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges:true", "--memory", "8g", "--pids-limit", "512"),
        *("--env", "HOME=/tmp", "--env", "HF_HUB_OFFLINE=1", "--env", "VLLM_NO_USAGE_STATS=1"),
        *("--env", "VLLM_LOGGING_LEVEL=ERROR", "--env", "NVIDIA_VISIBLE_DEVICES=void"),
        *("--entrypoint", "python3", parameters["image"], "-c", parameters["script"]),
    ]


def parse_answer(output: str) -> dict[str, Any] | None:
    """The answer in the last line of a program's output; None where there is none."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    good = isinstance(answer, dict) and isinstance(answer.get("problems"), dict) and "sleep_mode" in answer
    return answer if good else None


def ask(parameters: dict[str, Any]) -> dict[str, Any]:
    """The image's answer, or a `failure` in one sentence."""
    question = json.dumps({"commands": parameters["commands"]})
    try:
        done = subprocess.run(
            container_command(parameters),
            input=question,
            capture_output=True,
            text=True,
            timeout=parameters["timeout_seconds"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        _remove(parameters)
        return {"failure": f"its parser did not answer within {parameters['timeout_seconds']} s"}
    except OSError as error:
        return {"failure": f"docker can't be run: {error.strerror}"}
    answer = parse_answer(done.stdout) if done.returncode == 0 else None
    if answer is None:
        tail = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])[-_LONGEST_TAIL:]
        return {"failure": f"its parser can't be asked (exit status {done.returncode}): {tail}"}
    return answer


def _remove(parameters: dict[str, Any]) -> None:
    """A `docker run` that was given up leaves its container running."""
    subprocess.run(
        ["docker", "--host", parameters["docker_host"], "rm", "--force", parameters["name"]],
        capture_output=True,
        timeout=_REMOVE_SECONDS,
        check=False,
    )


def cache_path(parameters: dict[str, Any]) -> Path:
    """Where the answer to this very question is kept."""
    question = [parameters["image"], parameters["commands"], parameters["script"]]
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return Path(parameters["cache"]) / f"{digest}.json"


def cached(path: Path) -> dict[str, Any] | None:
    """An answer that was kept; None where there is none that can be read."""
    try:
        return parse_answer(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def keep(path: Path, answer: dict[str, Any]) -> None:
    """Keep an answer, and the newest 50. A folder that can't be written costs time and nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(answer) + "\n", encoding="utf-8")
        temporary.replace(path)
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-_KEPT_ANSWERS]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def main() -> None:
    """Answer from the record, or ask the image."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "commands": {"type": "dict", "required": True},
            "script": {"type": "str", "required": True},
            "cache": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "timeout_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    path = cache_path(module.params)
    answer = cached(path)
    if answer is None:
        answer = ask(module.params)
        if "failure" not in answer and not module.check_mode:
            keep(path, answer)
    module.exit_json(changed=False, answer=answer)


if __name__ == "__main__":
    main()
