"""Real images on a real daemon: the one that DOCKER_HOST names, else the usual one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
RUNNER = Path(__file__).with_name("run_module.py")
SCRIPT = (ROOT / "roles/engine_image/files/prepare_layer.py").read_text()

Run = Callable[..., dict[str, Any]]


def docker(*arguments: str, check: bool = True) -> str:
    """Run docker against the daemon under test and give back what it printed."""
    command = ["docker", "--host", HOST, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not check or answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def defaults(role: str) -> dict[str, Any]:
    """The defaults of a role, not templated."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    return loaded


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a module; its answer, in which ``failed`` is always there. No answer may hold a traceback.

    With `own_network`, whatever the module starts sees a network of its own and can't touch this machine's.
    """

    def call(
        module: str, /, *, check_mode: bool = False, own_network: bool = False, **arguments: Any
    ) -> dict[str, Any]:
        path = tmp_path / f"{module}.json"
        internal = {"_ansible_check_mode": check_mode, "_ansible_remote_tmp": str(tmp_path)}
        path.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, **internal}}))
        command = [
            *(["unshare", "--net"] if own_network else []),
            sys.executable,
            str(RUNNER),
            module,
            str(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return {"failed": False, **answer}

    return call


@pytest.fixture(scope="session")
def base() -> str:
    """The base image that the role makes by default; made here where it is missing (half a minute)."""
    program = shutil.which("mmdebstrap")
    assert program, "mmdebstrap is needed: apt-get install mmdebstrap debian-archive-keyring"
    described = defaults("engine_image")["engine_image_base"]
    sys.path.append(str(ROOT / "roles/engine_image/module_utils"))
    from engine_image_chain import chain

    reference = chain(described, [], [], SCRIPT)[0].reference
    arguments = {
        "docker_host": HOST,
        "reference": reference,
        "suite": described["suite"],
        "packages": described["packages"],
        "_ansible_remote_tmp": "/tmp",
    }
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"images-base-{os.getpid()}.json"
    path.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    command = [sys.executable, str(RUNNER), "engine_image_base", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    path.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    return reference
