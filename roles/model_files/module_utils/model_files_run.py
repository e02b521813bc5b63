"""A download from a hub in a throw-away container: start it, see how far it is, take what came out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.box_tools_docker import Docker, DockerError, last_lines
from ansible.module_utils.model_files_hub import job_digest
from ansible.module_utils.model_files_places import Places

_LABEL = "vllm-frontdoor.pull"


def jobs_folder() -> Path:
    """Where jobs lie: in memory, for a token never gets onto a disk.

    Whoever isn't root has a folder in memory of their own (XDG_RUNTIME_DIR, which pam_systemd makes). Raises
    DockerError where that isn't there.
    """
    if os.geteuid() == 0:
        return Path("/run/vllm-frontdoor")
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    if not own.is_dir():
        raise DockerError(f"There is no folder in memory for your job ({own}): log in anew, or use sudo.")
    return own / "vllm-frontdoor"


class Run:
    """The container of one download, which runs as whoever asked, so that the files are theirs."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.docker = Docker(asked["docker_host"])
        self.container = f"vllm-frontdoor-pulling-{asked['name']}"
        self.folder = jobs_folder() / f"pulling-{asked['name']}"
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
        # Another's job lies where we can't see how far it is.
        digest = job_digest({**self.asked["job"], "folder": str(self.folder)})
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
            *("--network", self.asked["network"], "--read-only", "--tmpfs", "/tmp"),
            *("--user", f"{os.geteuid()}:{os.getegid()}"),
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
