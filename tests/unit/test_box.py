"""A command that would deploy to no box at all says so, instead of succeeding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        ["site"],
        ["plan", "-e", "router_idle_sleep_minutes=5"],
        ["pull", "OWNER/NAME"],
        ["bundle", "/srv/frontdoor.bundle"],
        ["calibrate"],
        ["rollback", "--check"],
        ["teardown"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_without_an_inventory_is_refused(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_INVENTORY"}
    run = subprocess.run(
        [REPOSITORY / "box", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.startswith("box: say which boxes, with -i inventory/hosts.yml")


def test_a_playbook_that_finds_no_box_fails(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("others: {hosts: {localhost: {ansible_connection: local}}}\n")
    run = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", inventory, REPOSITORY / "site.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "frontdoor" in run.stderr
