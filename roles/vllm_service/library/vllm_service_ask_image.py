#!/usr/bin/python
"""Ask an image what it thinks of what it is to be started with, before anything that runs is touched."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_ask_image
short_description: Ask an image what it thinks of arguments and settings
description:
  - Starts a throw-away container without network, without GPU and with a read-only file system, in which a
    program of the image or one handed to it reads a question and answers. Nothing else is started, and
    nothing on the box is changed but the record of the answers in C(cache), from which the same question is
    answered next time.
options:
  docker_host:
    description: Address of the Docker daemon as the C(docker) command takes it.
    type: str
    required: true
  image:
    description: Id of the image.
    type: str
    required: true
  program:
    description: The arguments of the image's C(python3).
    type: list
    elements: str
    required: true
  question:
    description: What the program reads as JSON from its standard input.
    type: dict
    required: true
  files:
    description: Contents by path, which join the question as C(files). Never logged.
    type: dict
    default: {}
  cache:
    description: Absolute folder of the answers.
    type: path
    required: true
  name:
    description: Name of the container.
    type: str
    required: true
  timeout_seconds:
    description: How long the program may take.
    type: int
    default: 300
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Ask the image
  vllm_service_ask_image:
    docker_host: unix:///var/run/docker.sock
    image: sha256:0000000000000000000000000000000000000000000000000000000000000000
    program: ["-c", "{{ lookup('ansible.builtin.file', 'ask_arguments.py') }}"]
    question: {commands: {text: ["--model", "/models/m"]}}
    cache: /var/lib/vllm-frontdoor/default/arguments
    name: vllm-frontdoor-default-arguments
"""

RETURN = r"""
answer:
  description: >-
    What the program printed in its last line, an object with C(problems): sentences by subject. Or
    C(failure), a sentence, where it can't be asked.
  returned: always
  type: dict
"""

_KEPT_ANSWERS = 50
_REMOVE_SECONDS = 30
_LONGEST_TAIL = 600


def container_command(parameters: dict[str, Any]) -> list[str]:
    """The command that runs the program in the image."""
    return [
        *("docker", "--host", parameters["docker_host"], "run", "--rm", "--interactive"),
        *("--name", parameters["name"], "--pull", "never", "--network", "none"),
        *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges:true", "--memory", "8g", "--pids-limit", "512"),
        *("--env", "HOME=/tmp", "--env", "HF_HUB_OFFLINE=1", "--env", "VLLM_NO_USAGE_STATS=1"),
        *("--env", "VLLM_LOGGING_LEVEL=ERROR", "--env", "NVIDIA_VISIBLE_DEVICES=void"),
        *("--entrypoint", "python3", parameters["image"], *parameters["program"]),
    ]


def parse_answer(output: str) -> dict[str, Any] | None:
    """The answer in the last line of a program's output; None where there is none."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("problems"), dict) else None


def question(parameters: dict[str, Any]) -> dict[str, Any]:
    """What the program reads."""
    files = parameters["files"]
    return {**parameters["question"], **({"files": files} if files else {})}


def ask(parameters: dict[str, Any]) -> dict[str, Any]:
    """The image's answer, or a `failure` in one sentence."""
    try:
        done = subprocess.run(
            container_command(parameters),
            input=json.dumps(question(parameters)),
            capture_output=True,
            text=True,
            timeout=parameters["timeout_seconds"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        _remove(parameters)
        return {"failure": f"it did not answer within {parameters['timeout_seconds']} s"}
    except OSError as error:
        return {"failure": f"docker can't be run: {error.strerror}"}
    answer = parse_answer(done.stdout) if done.returncode == 0 else None
    if answer is None:
        tail = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])[-_LONGEST_TAIL:]
        return {"failure": f"it can't be asked (exit status {done.returncode}): {tail}"}
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
    asked = [parameters["image"], parameters["program"], question(parameters)]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
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
            "program": {"type": "list", "elements": "str", "required": True},
            "question": {"type": "dict", "required": True},
            "files": {"type": "dict", "default": {}, "no_log": True},
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
