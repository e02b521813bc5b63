#!/usr/bin/python
"""Start a download from a hub in a throw-away container, tell how far it is, and take its outcome."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError, last_lines
from ansible.module_utils.model_files_hub import job_digest
from ansible.module_utils.model_files_places import Places

DOCUMENTATION = r"""
module: model_files_hub_run
short_description: Download a model in a throw-away container
description:
  - C(started) starts the download and comes back at once; a download of the same that runs already is taken
    over. C(watched) tells how far it is, and takes the outcome of one that has ended.
  - The token is handed over in a file that only root can read, in memory, which the container removes as soon
    as it has read it. It is in no argument, environment or image.
options:
  state:
    description: What to do.
    type: str
    choices: [started, watched]
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  image:
    description: Image that carries Python and huggingface_hub.
    type: str
    default: ""
  network:
    description: Docker network of the container.
    type: str
    default: bridge
  programs:
    description: Contents of the programs that the container runs, by file name.
    type: dict
    default: {}
  root:
    description: Folder that holds the models.
    type: path
    required: true
  name:
    description: Name of the model's folder.
    type: str
    required: true
  job:
    description: What to download, as C(hub_pull.py) reads it, without the token.
    type: dict
    default: {}
  environment:
    description: Environment of the download, such as a proxy.
    type: dict
    default: {}
  token:
    description: Token for the hub; empty for none.
    type: str
    default: ""
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: See how far it is
  model_files_hub_run:
    state: watched
    root: /var/lib/vllm-frontdoor/models
    name: Qwen3-8B
"""

RETURN = r"""
running:
  description: Whether the download is still under way.
  returned: always
  type: bool
status:
  description: How far it is, with C(phase), C(done_bytes) and C(total_bytes).
  returned: while it runs
  type: dict
outcome:
  description: What came out, with C(commit), C(files), C(bytes) and C(set_aside).
  returned: when it has ended well
  type: dict
"""

# In memory: a token never gets onto a disk.
_JOBS = Path("/run/vllm-frontdoor")
_LABEL = "vllm-frontdoor.pull"


class Run:
    """The container of one download."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.docker = Docker(asked["docker_host"])
        self.container = f"vllm-frontdoor-pulling-{asked['name']}"
        self.folder = _JOBS / f"pulling-{asked['name']}"
        self.places = Places(Path(asked["root"]), asked["name"])

    def state(self) -> tuple[bool, str] | None:
        """Whether the container runs, and of which job it is; None when there is none. Raises DockerError."""
        form = '{{.State.Running}} {{index .Config.Labels "' + _LABEL + '"}}'
        answer = self.docker.run("container", "inspect", "--format", form, self.container)
        if answer.returncode != 0:
            return None
        running, _, digest = answer.stdout.strip().partition(" ")
        return running == "true", digest

    def start(self) -> None:
        """Start the download, or take over one that runs. Raises DockerError."""
        digest = job_digest(self.asked["job"])
        state = self.state()
        if state is not None and state[0]:
            if state[1] == digest:
                return
            raise DockerError(
                f"Another pull of {self.asked['name']} is under way (container {self.container}); "
                "wait for its "
                f"end, or stop it with 'docker rm --force {self.container}'."
            )
        self.clean_up()
        self._lay_out()
        self.places.pulling.mkdir(parents=True, exist_ok=True, mode=0o755)
        try:
            self.docker.must(f"Starting the download in {self.asked['image']}", *self._command(digest))
        except DockerError:
            self.clean_up()
            raise

    def _lay_out(self) -> None:
        self.folder.mkdir(parents=True, mode=0o700)
        for name, content in self.asked["programs"].items():
            (self.folder / name).write_text(content, encoding="utf-8")
        job = {
            **self.asked["job"],
            "environment": self.asked["environment"],
            "token": self.asked["token"],
            "place": str(self.places.pulling),
        }
        path = self.folder / "job.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(job), encoding="utf-8")

    def _command(self, digest: str) -> list[str]:
        return [
            *("run", "--detach", "--name", self.container, "--label", f"{_LABEL}={digest}"),
            *("--network", self.asked["network"], "--read-only", "--tmpfs", "/tmp", "--user", "0:0"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
            *("--volume", f"{self.folder}:/job", "--volume", f"{self.places.pulling}:/pull"),
            *("--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1", "--entrypoint", "python3"),
            *(self.asked["image"], "/job/hub_pull.py", "/job", "/pull"),
        ]

    def watch(self) -> dict[str, Any]:
        """How far it is, or what came out. Raises DockerError where nothing did."""
        state = self.state()
        if state is not None and state[0]:
            return {"running": True, "status": self._read("status.json")}
        outcome = self._read("outcome.json")
        said = self._last_words() if outcome is None else ""
        self.clean_up()
        if outcome is None:
            raise DockerError(
                "The download ended without an "
                f"outcome{f': {said}' if said else '; was its container removed?'} "
                "Run again: what has arrived is kept."
            )
        if not outcome["ok"]:
            raise DockerError(outcome["sentence"])
        return {"running": False, "outcome": outcome}

    def _last_words(self) -> str:
        answer = self.docker.run("logs", "--tail", "20", self.container)
        return last_lines(answer.stdout + "\n" + answer.stderr, 2) if answer.returncode == 0 else ""

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            document: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document

    def clean_up(self) -> None:
        """Remove the container and its job, the token with it."""
        self.docker.remove_container(self.container)
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    """Start or watch."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "watched"], "required": True},
            "docker_host": {"type": "str", "default": ""},
            "image": {"type": "str", "default": ""},
            "network": {"type": "str", "default": "bridge"},
            "programs": {"type": "dict", "default": {}},
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "job": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}, "no_log": True},
            "token": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=False,
    )
    run = Run(module.params)
    try:
        if module.params["state"] == "started":
            run.start()
            module.exit_json(changed=True, running=True, status=None)
        module.exit_json(changed=False, **run.watch())
    except (DockerError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
