"""The docker command: what it says is turned into sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.box_tools_docker import Docker, DockerError, digests_of, last_lines


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; what is written to `docker` there is the docker command."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "docker"


def write(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_only_the_end_of_a_long_output_is_shown_and_no_traceback() -> None:
    output = "\n".join(
        [
            "one",
            "",
            "10%\r20%\r30%",
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            "    f()",
            "ValueError: odd",
        ]
    )
    assert last_lines(output) == "one\n30%\nValueError: odd"
    assert last_lines(output, 1) == "ValueError: odd"


def test_an_image_that_is_not_there_is_none_and_a_silent_daemon_is_an_error(docker: Path) -> None:
    write(docker, "echo 'Error: No such image: x' >&2; exit 1")
    assert Docker("").image("x") is None
    write(docker, "echo 'Cannot connect to the Docker daemon.' >&2; exit 1")
    with pytest.raises(DockerError, match="Cannot connect"):
        Docker("").image("x")


def test_the_daemon_that_is_meant_is_asked_and_named(docker: Path) -> None:
    write(docker, 'echo "$@" >&2; exit 1')
    said = Docker("unix:///x.sock").unreachable()
    assert (
        said is not None
        and "--host unix:///x.sock version" in said
        and "container_engine_docker_host" in said
    )
    write(docker, "echo 20.10.24")
    assert Docker("unix:///x.sock").unreachable() is None


def test_no_answer_in_time_is_a_sentence(docker: Path) -> None:
    write(docker, "exec sleep 5")
    with pytest.raises(DockerError, match="no answer from the Docker daemon after 0 s"):
        Docker("").run("version", seconds=0.05)


def test_no_docker_command_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DockerError, match="container_engine_install"):
        Docker("").run("version")


def test_digests_are_taken_from_an_answer_with_and_without_them() -> None:
    assert digests_of({"RepoDigests": ["a/b@sha256:1", "c@sha256:2"]}) == ["sha256:1", "sha256:2"]
    assert digests_of({"RepoDigests": None}) == []
