"""The docker command from Python: what is needed here, with errors that are sentences for people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import IO, Any

ANSWER_SECONDS = 30.0
BUILD_SECONDS = 3600.0
_LINES_SHOWN = 20


class DockerError(RuntimeError):
    """Docker could not do it; the text is a sentence for people."""


def last_lines(text: str, count: int = _LINES_SHOWN) -> str:
    """The last `count` lines of `text` that are not empty, with progress bars cut to their last state.

    Of a Python traceback only its last line, which says what happened, is for people.
    """
    lines = (line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))
    return "\n".join([line for line in lines if line and not _belongs_to_traceback(line)][-count:])


def _belongs_to_traceback(line: str) -> bool:
    return line.startswith(("Traceback (most recent call last)", '  File "', "    "))


class Docker:
    """The docker command aimed at one daemon."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._command = ["docker", *(["--host", host] if host else [])]

    @property
    def where(self) -> str:
        """How to name the daemon in a sentence."""
        return f"the Docker daemon at {self.host}" if self.host else "the Docker daemon"

    def run(
        self,
        *arguments: str,
        seconds: float = ANSWER_SECONDS,
        stdin: IO[bytes] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker ARGUMENTS`` and give back whatever it answered.

        Raises DockerError when there is no docker command or no end within `seconds`.
        """
        try:
            return subprocess.run(
                [*self._command, *arguments],
                stdin=stdin or subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError:
            raise DockerError(
                "There is no docker command on the box; install Docker there, or set "
                "container_engine_install: true."
            ) from None
        except subprocess.TimeoutExpired:
            raise DockerError(
                f"'docker {arguments[0]}' had no answer from {self.where} after {seconds:.0f} s; "
                "see the daemon's log (journalctl -u docker, or container_engine_log_file)."
            ) from None

    def must(
        self, what: str, *arguments: str, seconds: float = ANSWER_SECONDS, stdin: IO[bytes] | None = None
    ) -> str:
        """Run ``docker ARGUMENTS`` and give back what it printed.

        Raises DockerError, naming `what` could not be done, with Docker's last lines.
        """
        answer = self.run(*arguments, seconds=seconds, stdin=stdin)
        if answer.returncode != 0:
            said = last_lines(answer.stdout + "\n" + answer.stderr)
            raise DockerError(f"{what} failed; the last lines of 'docker {arguments[0]}' were:\n{said}")
        return answer.stdout.strip()

    def unreachable(self) -> str | None:
        """Why the daemon can't be used, as a sentence; None when it answers."""
        try:
            answer = self.run("version", "--format", "{{.Server.Version}}")
        except DockerError as error:
            return str(error)
        if answer.returncode == 0:
            return None
        return (
            f"{self.where[0].upper()}{self.where[1:]} does not answer: {last_lines(answer.stderr, 1)} "
            "Start it, or let the role container_engine do so (container_engine_docker_host says where it "
            "listens)."
        )

    def image(self, reference: str) -> dict[str, Any] | None:
        """What ``docker image inspect`` says of `reference`; None when the image is not on the box."""
        answer = self.run("image", "inspect", reference)
        if answer.returncode == 0:
            found: dict[str, Any] = json.loads(answer.stdout)[0]
            return found
        if "no such image" in answer.stderr.lower():
            return None
        raise DockerError(f"Looking up the image {reference} failed: {last_lines(answer.stderr, 1)}")

    def remove_container(self, name: str) -> None:
        """Remove a container, running or not; one that isn't there is as good as removed."""
        self.run("rm", "--force", name, seconds=120)


def image_id(image: dict[str, Any] | None) -> str | None:
    """The id in an answer of ``Docker.image``; None for None."""
    return str(image["Id"]) if image is not None else None


def labels_of(image: dict[str, Any]) -> dict[str, str]:
    """The labels in an answer of ``Docker.image``."""
    config = image.get("Config") or {}
    return dict(config.get("Labels") or {})


def digests_of(image: dict[str, Any]) -> Sequence[str]:
    """The digests (``sha256:…``) under which registries know the image; empty when it never was in one."""
    return [each.rsplit("@", 1)[1] for each in image.get("RepoDigests") or []]
