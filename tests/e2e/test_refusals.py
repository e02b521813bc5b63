"""Bad input is refused with what is wrong and what to do about it; nothing that runs is touched."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rehearsal_box import Deployed, container_ids

SERVICE = {"slot": 1, "model": "SmolLM2-135M-Instruct", "task": "generate", "devices": ["left"]}


def services(**changes: object) -> str:
    """Extra variables that declare one service, changed as said."""
    return json.dumps({"vllm_service_services": {"text": {**SERVICE, **changes}}})


@pytest.mark.parametrize(
    ("variables", "sentences"),
    [
        pytest.param(
            '{"vllm_service_memory_limt": 0.5}',
            ["vllm_service_memory_limt", "vllm_service_memory_limit"],
            id="misspelled variable",
        ),
        pytest.param(
            '{"router_idle_minutes": 5}',
            ["router_idle_minutes", "router_idle_sleep_minutes"],
            id="unknown variable",
        ),
        pytest.param(services(modle="x"), ["modle", "model"], id="misspelled key of a service"),
        pytest.param(
            services(model="Nowhere-7B"),
            ["Nowhere-7B", "/var/lib/vllm-frontdoor/models/Nowhere-7B"],
            id="model folder that isn't there",
        ),
        pytest.param(
            services(devices=["middle"]),
            ["middle", "vllm_service_services.text.devices", "left, right"],
            id="unknown device",
        ),
        pytest.param(
            services(devices=["left", "right"], tensor_parallel=2),
            ["tensor_parallel", "9 attention heads"],
            id="parallelism that the model's heads don't allow",
        ),
        pytest.param(
            services(environment={"NCCL_P2P_DISABLE": "0"}), ["NCCL_P2P_DISABLE"], id="forbidden peer path"
        ),
        pytest.param(
            json.dumps(
                {
                    "engine_image_source": "archive",
                    "engine_image_archive": "/nowhere.tar",
                    "engine_image_archive_sha256": "0" * 64,
                }
            ),
            ["/nowhere.tar"],
            id="image that can't be had",
        ),
    ],
)
def test_refused_before_anything_is_touched(deployed: Deployed, variables: str, sentences: list[str]) -> None:
    before = container_ids()
    refused = deployed.box.refuse("rehearse", "-e", variables)
    for sentence in sentences:
        assert sentence in refused.output
    assert refused.changed == 0
    assert container_ids() == before


def test_all_refusals_come_at_once(deployed: Deployed) -> None:
    variables = json.dumps(
        {
            "vllm_service_services": {
                "text": {**SERVICE, "aliases": ["same"]},
                "other": {**SERVICE, "aliases": ["SAME"], "devices": ["middle"]},
            }
        }
    )
    refused = deployed.box.refuse("rehearse", "-e", variables)
    for part in ("slot", "same", "middle"):
        assert part in refused.output


def test_a_port_in_use(deployed: Deployed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused = deployed.box.refuse(
            "rehearse", "-e", json.dumps({"frontdoor_instance": "second", "frontdoor_port_base": port})
        )
    assert str(port) in refused.output
    assert "frontdoor_port_base" in refused.output
    assert not Path("/opt/vllm-frontdoor/second").exists()


@contextmanager
def deaf_daemon(folder: Path) -> Iterator[str]:
    """A socket that accepts connections and never answers."""
    path = folder / "docker.sock"
    kept = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.2)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    kept.append(listener.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            stop.set()
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize("instance", ["rehearsal", "second"])
def test_a_daemon_that_does_not_answer(deployed: Deployed, tmp_path: Path, instance: str) -> None:
    """Also where the instance runs already, on a daemon that hangs: its own ports look taken then."""
    before = container_ids()
    with deaf_daemon(tmp_path) as docker_host:
        refused = deployed.box.refuse(
            *("rehearse", "-e", "container_engine_install=false", "-e", f"frontdoor_instance={instance}"),
            DOCKER_HOST=docker_host,
        )
    assert "does not answer" in refused.output
    assert docker_host in refused.output
    assert refused.changed == 0
    assert container_ids() == before


def test_an_argument_that_vllm_does_not_know(deployed: Deployed) -> None:
    variables = json.dumps(
        {
            "vllm_service_services": {
                "text": {**SERVICE, "aliases": ["smol"], "max_model_len": 2048},
                "embed": {
                    "slot": 2, "model": "all-MiniLM-L6-v2", "task": "embed", "aliases": ["minilm"],
                    "devices": ["right"], "extra_args": ["--no-such-flag"],
                },
            }
        }
    )  # fmt: skip
    before = container_ids()
    refused = deployed.box.refuse("rehearse", "-e", variables)
    assert "vLLM 0.27.1 has no flag --no-such-flag." in refused.output
    assert "vllm_service_services.embed.extra_args" in refused.output
    assert refused.changed == 0
    assert container_ids() == before
