"""Discovery: works on bare machines, waits for nobody, and finds who listens."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from gpu_diag.hostfacts import gpu_diag_box
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.hostfacts.gpu_diag_commands import run_bounded
from gpu_diag.hostfacts.gpu_diag_parsers import at
from gpu_diag.hostfacts.gpu_diag_weights_state import WEIGHTS_TOOL_VERSION, file_states


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def question(tmp_path: Path, **changes: object) -> Question:
    nowhere = str(tmp_path / "not-installed")
    arguments: dict[str, object] = {"nvidia_smi": [nowhere], "docker": [nowhere], **changes}
    return Question(**arguments)  # type: ignore[arg-type]


def test_a_machine_without_gpus_and_docker_is_described(tmp_path: Path) -> None:
    box = discover(question(tmp_path, images=["engine:1"]))
    assert box["schema_version"] == 1
    assert box["gpus"] == [] and box["driver"] is None
    assert box["docker"] == {
        "reachable": False,
        "version": None,
        "compose": None,
        "error": f"{tmp_path}/not-installed is not installed",
    }
    assert box["images"] == {"engine:1": None}
    assert box["cpu_count"] == os.cpu_count()
    memory = box["memory_bytes"]
    assert isinstance(memory, int) and memory > 2**28


def test_gpus_come_from_nvidia_smi(tmp_path: Path, fixtures: Path) -> None:
    recorded = fixtures / "nvidia-smi-595.71.05-v13-three-a800.xml"
    box = discover(question(tmp_path, nvidia_smi=[script(tmp_path / "smi", f'cat "{recorded}"')]))
    gpus = box["gpus"]
    assert isinstance(gpus, list) and len(gpus) == 3
    assert box["problems"] == []


def test_a_driver_that_does_not_answer_is_a_sentence(tmp_path: Path) -> None:
    failing = script(tmp_path / "smi", "echo 'NVIDIA-SMI has failed: no driver' ; exit 9")
    box = discover(question(tmp_path, nvidia_smi=[failing]))
    assert box["problems"] == [f"`{failing} -q -x` ended with status 9: NVIDIA-SMI has failed: no driver"]


def test_a_hanging_nvidia_smi_and_docker_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_diag_box, "_NVIDIA_SMI_SECONDS", 0.2)
    monkeypatch.setattr(gpu_diag_box, "_DOCKER_SECONDS", 0.2)
    hanging = script(tmp_path / "hang", "exec sleep 60")
    began = time.monotonic()
    box = discover(question(tmp_path, nvidia_smi=[hanging], docker=[hanging]))
    assert time.monotonic() - began < 10
    assert box["problems"] == [f"`{hanging} -q -x` did not answer within 0.2 s"]
    assert at(box, "docker", "error") == f"`{hanging} version --format` did not answer within 0.2 s"


def test_a_child_that_ignores_its_end_is_left_behind(tmp_path: Path) -> None:
    # The grandchild keeps the pipe open although the child was killed.
    keeps_pipe = script(tmp_path / "keeps", "sleep 5 & exec sleep 60")
    began = time.monotonic()
    assert run_bounded([keeps_pipe], 0.1).problem == f"`{keeps_pipe}` did not answer within 0.1 s"
    assert time.monotonic() - began < 4


def test_who_listens_on_a_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port, free = server.getsockname()[1], unused.getsockname()[1]
        box = discover(question(tmp_path, ports=[port, free]))
    found = at(box, "ports", str(port))
    assert isinstance(found, dict)
    assert found["pid"] == os.getpid() and found["container"] is None
    assert found["process"] == Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert at(box, "ports", str(free)) is None


def fake_root(folder: Path, container_id: str) -> Path:
    """A /proc in which process 77 listens on port 8000 inside a container."""
    process = folder / "proc" / "77"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[555]")
    (process / "comm").write_text("python3\n")
    (process / "cgroup").write_text(f"0::/system.slice/docker-{container_id}.scope\n")
    (folder / "proc" / "net").mkdir()
    line = "   0: 00000000:1F40 00000000:0000 0A 0:0 0:0 0 0 0 555 1 0 100 0 0 10 0"
    (folder / "proc" / "net" / "tcp").write_text(f"header\n{line}\n")
    return folder


def test_a_listener_in_a_container_and_a_published_port_name_the_container(tmp_path: Path) -> None:
    inside, publishing = "a" * 64, "b" * 64
    inspected = [
        {"Id": inside, "Name": "/router", "Config": {"Labels": {"vllm-frontdoor.instance": "one"}}},
        {
            "Id": publishing,
            "Name": "/old",
            "NetworkSettings": {"Ports": {"80/tcp": [{"HostPort": "8001"}]}},
        },
    ]
    (tmp_path / "containers.json").write_text(json.dumps(inspected))
    docker = script(
        tmp_path / "docker",
        f"""case "$1 $2" in
        "version --format") echo '{{"Server": {{"Version": "20.10.24"}}}}' ;;
        "compose version") echo v2.29.0 ;;
        "container ls") echo x ;;
        "container inspect") cat {tmp_path}/containers.json ;;
        esac""",
    )
    root = fake_root(tmp_path / "root", inside)
    box = discover(
        question(tmp_path, docker=[docker], root=str(root), ports=[8000, 8001, 8002], instance="one")
    )
    assert box["docker"] == {"reachable": True, "version": "20.10.24", "compose": "2.29.0", "error": None}
    assert box["ports"] == {
        "8000": {"process": "python3", "pid": 77, "container": "router"},
        "8001": {"process": None, "pid": None, "container": "old"},
        "8002": None,
    }
    containers = box["containers"]
    assert isinstance(containers, list)
    assert [container["name"] for container in containers] == ["router"]


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one").touch()
    (tmp_path / "file").touch()
    paths = [str(tmp_path / name) for name in ("models", "file", "absent")]
    box = discover(question(tmp_path, paths=paths))
    assert box["paths"] == {
        paths[0]: {"exists": True, "is_directory": True, "entries": 1},
        paths[1]: {"exists": True, "is_directory": False, "entries": 0},
        paths[2]: {"exists": False, "is_directory": False, "entries": 0},
    }


def test_paths_that_hang_are_given_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = threading.Event()
    real = gpu_diag_box._path
    monkeypatch.setattr(gpu_diag_box, "_FILE_SYSTEM_SECONDS", 0.3)
    monkeypatch.setattr(
        gpu_diag_box, "_path", lambda path: real(path) if path.name == "good" else {"exists": hung.wait()}
    )
    (tmp_path / "good").mkdir()
    names = ["/hangs/1", "/hangs/2", "/hangs/3", str(tmp_path / "good")]
    began = time.monotonic()
    box = discover(question(tmp_path, paths=names))
    assert time.monotonic() - began < 3
    assert at(box, "paths", names[3], "exists") is True
    problems = box["problems"]
    assert isinstance(problems, list)
    assert len(problems) == 3 and "did not answer within 0.3 s" in problems[0]
    hung.set()


def test_acs_bits_are_read_from_the_ports_above_a_gpu(tmp_path: Path, fixtures: Path) -> None:
    root = tmp_path / "root"
    port = root / "sys" / "devices" / "pci0000:3a" / "0000:3a:00.0"
    (port / "0000:3d:00.0").mkdir(parents=True)
    (port / "config").write_bytes(bytes(64))
    links = root / "sys" / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    (links / "0000:3d:00.0").symlink_to(port / "0000:3d:00.0")
    recorded = fixtures / "nvidia-smi-595.71.05-v13-three-a800.xml"
    smi = script(tmp_path / "smi", f'cat "{recorded}"')
    box = discover(question(tmp_path, nvidia_smi=[smi], root=str(root)))
    assert box["acs_redirect"] == {"0000:3a:00.0": None}


def test_broken_evidence_is_a_sentence_and_the_rest_is_returned(tmp_path: Path) -> None:
    folder = tmp_path / "evidence" / "p2p"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text('{"schema_version": 1, "verdict": "clean"}')
    (folder / "2.json").write_text("{")
    (folder / "3.json").write_text('{"schema_version": 99}')
    box = discover(question(tmp_path, evidence=str(tmp_path / "evidence")))
    assert at(box, "evidence", "p2p") == [{"schema_version": 1, "verdict": "clean"}]
    problems = box["problems"]
    assert isinstance(problems, list)
    assert [str(folder / "3.json") in problems[0], str(folder / "2.json") in problems[1]] == [True, True]


def test_weights_evidence_is_current_until_a_file_changes(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1")
    states = file_states(str(model))
    document = {
        "schema_version": 1,
        "tool": {"version": WEIGHTS_TOOL_VERSION},
        "verdict": "values_only",
        "class": None,
        "details": {"model": str(model), "files": states},
    }
    folder = tmp_path / "evidence" / "weights"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps(document))
    asked = question(tmp_path, evidence=str(tmp_path / "evidence"))
    verdict = {"verdict": "values_only", "class": None}
    assert discover(asked)["weights"] == {str(model): {**verdict, "current": True, "reasons": []}}
    (model / "model.safetensors").write_bytes(b"12")
    (model / "more").touch()
    reasons = ["more is new", "model.safetensors was changed"]
    assert discover(asked)["weights"] == {str(model): {**verdict, "current": False, "reasons": reasons}}
