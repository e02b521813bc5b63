"""The values of group_vars arrive, for each inventory of the repository; an outside one brings its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(__file__).parent / "playbooks" / "values.yml"
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
INVENTORIES = {
    "inventory/rehearsal": (
        "localhost",
        {"limit": 0.88, "services": ["embed", "text"], "instance": "rehearsal", "idle": 15},
    ),
    "inventory/hosts.example.yml": (
        "gpu-box-1",
        {"limit": 0.88, "services": ["embed", "ocr", "text"], "instance": None, "idle": 15},
    ),
}
OUTSIDE = """\
frontdoor:
  children:
    gpu_boxes:
      hosts:
        elsewhere:
"""


def arriving(inventory: Path, host: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """The values that ansible-playbook sees for a host, started from some other folder."""
    subprocess.run(
        [ANSIBLE_PLAYBOOK, "-i", inventory, PLAYBOOK, "-e", f"values_folder={folder}", *arguments],
        cwd=folder,
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        check=True,
        capture_output=True,
    )
    values: dict[str, Any] = json.loads((folder / f"{host}.json").read_text())
    return values


def test_every_inventory_of_the_repository_is_tried() -> None:
    found = {
        str(path.parent.relative_to(REPOSITORY) if path.name == "hosts.yml" else path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "inventory").rglob("hosts*.yml")
        if path != REPOSITORY / "inventory" / "hosts.yml"  # a person's own
    }
    assert found == set(INVENTORIES)


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_group_vars_arrive(inventory: str, tmp_path: Path) -> None:
    host, values = INVENTORIES[inventory]
    assert arriving(REPOSITORY / inventory, host, tmp_path) == values


def test_an_outside_inventory_brings_its_own_values(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "group_vars").mkdir(parents=True)
    (own / "hosts.yml").write_text(OUTSIDE)
    (own / "group_vars" / "all.yml").write_text("vllm_service_memory_limit: 0.5\n")
    (own / "group_vars" / "gpu_boxes.yml").write_text("vllm_service_services: {mine: {}}\n")
    values = arriving(own / "hosts.yml", "elsewhere", tmp_path)
    assert values == {"limit": 0.5, "services": ["mine"], "instance": None, "idle": None}


def test_the_worked_example_of_the_readme(tmp_path: Path) -> None:
    """A host's value wins over group_vars, and the command line over both."""
    copy = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "group_vars", copy / "group_vars")
    (copy / "inventory" / "host_vars").mkdir(parents=True)
    (copy / "inventory" / "group_vars").symlink_to("../group_vars")
    inventory = copy / "inventory" / "hosts.yml"
    shutil.copyfile(REPOSITORY / "inventory" / "hosts.example.yml", inventory)
    assert arriving(inventory, "gpu-box-1", tmp_path)["idle"] == 15
    own = copy / "inventory" / "host_vars" / "gpu-box-1.yml"
    own.write_text("router_idle_sleep_minutes: 60\n")
    assert arriving(inventory, "gpu-box-1", tmp_path)["idle"] == 60
    once = arriving(inventory, "gpu-box-1", tmp_path, "-e", "router_idle_sleep_minutes=5")
    assert int(once["idle"]) == 5
