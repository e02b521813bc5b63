"""What is altered by hand is put right by the next run: that, nothing else, as --check predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rehearsal_box import ROOT, Deployed, container_ids, container_name, docker


def edit_file() -> None:
    path = ROOT / "engines" / "compose.yml"
    path.write_text(path.read_text() + "# a stray line\n")


def open_registry_to_all() -> None:
    (ROOT / "registry" / "registry.json").chmod(0o666)


def remove_container() -> None:
    docker("rm", "--force", container_name("embed"))


def limit_container() -> None:
    docker("update", "--memory", "6g", "--memory-swap", "6g", container_name("embed"))


def replace_network() -> None:
    name = container_name("embed")
    docker("network", "disconnect", "--force", name, name)
    docker("network", "rm", name)
    docker("network", "create", "--subnet", "10.254.254.0/28", name)


def stop_router() -> None:
    docker("stop", "--time", "20", container_name("router"))


Sabotage = Callable[[], None]


@pytest.mark.parametrize(
    ("sabotages", "words", "new_containers"),
    [
        pytest.param([edit_file], ["file engines/compose.yml"], [], id="one file"),
        pytest.param([open_registry_to_all], ["file registry/registry.json"], [], id="one mode"),
        pytest.param(
            [remove_container], [f"container {container_name('embed')}"], ["embed"], id="one container"
        ),
        pytest.param(
            [replace_network],
            [f"container {container_name('embed')}", f"network {container_name('embed')}"],
            ["embed"],
            id="one network",
        ),
        pytest.param(
            [edit_file, limit_container, replace_network, stop_router],
            [
                f"container {container_name('embed')}",
                f"container {container_name('router')}",
                "file engines/compose.yml",
                f"network {container_name('embed')}",
            ],
            ["embed"],
            id="several at once",
        ),
    ],
)
def test_the_next_run_repairs_exactly_what_was_altered(
    deployed: Deployed, sabotages: list[Sabotage], words: list[str], new_containers: list[str]
) -> None:
    before = container_ids()
    for sabotage in sabotages:
        sabotage()
    predicted = deployed.box.succeed("rehearse", "--check")
    repaired = deployed.box.succeed("rehearse")
    assert predicted.changes == repaired.changes
    assert predicted.changed_tasks == repaired.changed_tasks
    for word in words:
        assert any(change.startswith(word) for change in repaired.changes), repaired.changes
    assert len(repaired.changes) == len(words)
    after = container_ids()
    renewed = {name for name in after if before.get(name) != after[name]}
    assert renewed == {container_name(service) for service in new_containers}


def test_afterwards_nothing_is_left_to_do(deployed: Deployed) -> None:
    assert deployed.box.succeed("rehearse").changed == 0
