"""The module that stops an instance, where Docker doesn't answer or isn't there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MODULE = ROOT / "roles/vllm_service/library/vllm_service_teardown.py"


def tear_down(folder: Path, programs: Path) -> dict[str, Any]:
    """What the module answers that is told to remove a folder; it finds only these programs."""
    arguments = {
        "instance": "trial",
        "docker_host": "unix:///no/such/docker.sock",
        "folders": [str(folder)],
        "instances": str(folder.parent / "instances"),
    }
    ended = subprocess.run(
        [sys.executable, MODULE],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PATH": str(programs)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return dict(json.loads(ended.stdout))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "instance"
    folder.mkdir()
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    return programs


def test_a_docker_that_does_not_answer_fails_before_anything_is_removed(folder: Path, programs: Path) -> None:
    docker = programs / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    docker.chmod(0o755)
    answer = tear_down(folder, programs)
    assert answer["failed"]
    assert "start Docker, then run this again" in answer["msg"]
    assert "Cannot connect to the Docker daemon" in answer["msg"]
    assert folder.exists()


def test_without_docker_there_are_only_folders(folder: Path, programs: Path) -> None:
    answer = tear_down(folder, programs)
    assert answer["changes"] == [f"folder {folder}: removed"]
    assert not folder.exists()
