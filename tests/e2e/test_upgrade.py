"""The box goes from one vLLM to another and back, while clients keep asking; nobody is failed by it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from asking import Asker, embed, name_capital, releases, renewed, stream_text
from rehearsal_box import Deployed, Run, container_ids, container_name, docker, service_status

INVENTORY = ("-i", "inventory/rehearsal")
OLD, NEW = "0.27.1", "0.32.0"
UPGRADE = ("-e", f"engine_image_vllm_version={NEW}")
SERVICES = ("text", "embed")
ENGINES = {container_name(service) for service in SERVICES}
LABEL = '{{index .Config.Labels "vllm-frontdoor.vllm"}}'
PAUSE_SECONDS = 0.5

Versions = tuple[str, ...]


def image_version(service: str) -> str:
    """The vLLM of the image that the service's container was made of; empty between two containers."""
    command = ["docker", "inspect", "--format", LABEL, container_name(service)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def engine_version(service: str) -> str:
    """What the running engine itself says."""
    networks = json.loads(
        docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container_name(service))
    )
    (network,) = networks.values()
    answer = httpx.get(f"http://{network['IPAddress']}:8000/version", timeout=60)
    return str(answer.raise_for_status().json()["version"])


def engine_versions() -> Versions:
    return tuple(engine_version(service) for service in SERVICES)


class Watcher:
    """Looks again and again at which image each service's container is of, and notes each new state."""

    def __init__(self) -> None:
        self.seen: list[Versions] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            state = tuple(image_version(service) for service in SERVICES)
            if all(state) and state not in self.seen[-1:]:
                self.seen.append(state)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def both_services_in_use() -> Iterator[None]:
    """Three clients ask without a pause worth the name; each question is answered, or told when to come."""
    with (
        Asker(stream_text, PAUSE_SECONDS) as streams,
        Asker(name_capital, PAUSE_SECONDS) as questions,
        Asker(embed, PAUSE_SECONDS) as embeddings,
    ):
        askers = {"streams": streams, "questions": questions, "embeddings": embeddings}
        yield
        for asker in askers.values():
            asker.wait_for_another()
    for name, asker in askers.items():
        print(f"{name}: {asker.answered} answered, {asker.told_to_come_back} told to come back")
    assert {name: asker.failures for name, asker in askers.items()} == {name: [] for name in askers}


@pytest.fixture(scope="module")
def upgraded(deployed: Deployed) -> Run:
    """The rehearsal on the newer vLLM."""
    deployed.box.succeed("rehearse")
    before = container_ids()
    assert engine_versions() == (OLD, OLD)
    with both_services_in_use(), Watcher() as watcher:
        run = deployed.box.succeed("rehearse", *UPGRADE)
    # The new vLLM is proven on one service before the other gives up what works.
    assert watcher.seen == [(OLD, OLD), (NEW, OLD), (NEW, NEW)]
    assert renewed(before) == ENGINES
    return run


def test_the_upgrade_brings_the_new_vllm_to_both_services_and_fails_no_client(upgraded: Run) -> None:
    assert engine_versions() == (NEW, NEW)
    for service in SERVICES:
        assert f"{service}: proven, canary recorded" in upgraded.output
        assert service_status(service)["conditions"] == []


def test_upgrading_again_changes_nothing(deployed: Deployed, upgraded: Run) -> None:
    before, kept = container_ids(), releases()
    again = deployed.box.succeed("rehearse", *UPGRADE)
    assert again.changed == 0
    assert (container_ids(), releases()) == (before, kept)


def test_one_command_brings_the_old_vllm_back_and_fails_no_client(deployed: Deployed, upgraded: Run) -> None:
    before = container_ids()
    with both_services_in_use(), Watcher() as watcher:
        deployed.box.succeed("rollback", *INVENTORY)
    assert (watcher.seen[0], watcher.seen[-1]) == ((NEW, NEW), (OLD, OLD))
    assert renewed(before) == ENGINES
    assert engine_versions() == (OLD, OLD)
    for service in SERVICES:
        assert service_status(service)["conditions"] == []


def test_after_going_back_the_box_is_as_declared(deployed: Deployed, upgraded: Run) -> None:
    before = container_ids()
    assert deployed.box.succeed("rehearse").changed == 0
    assert container_ids() == before
