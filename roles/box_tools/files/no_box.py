"""Says when an inventory names no box to run on, before ansible-playbook is started.

    no_box.py ROOT < inventories

Ansible plays on an empty group succeed and do nothing. Each line of standard input is a value of `-i`;
without one, ansible-inventory takes what its environment says. `ROOT` holds the virtual environment. Ends
with 1 if there is no box; what ansible-inventory can't read is left to ansible-playbook, which then says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GROUP = "frontdoor"
VAULT = b"$ANSIBLE_VAULT"

Inventory = Mapping[str, Mapping[str, Any]]


def listed(root: Path, inventories: list[str]) -> Inventory | None:
    """What `ansible-inventory --list` tells of the inventories; None where it can't read them."""
    sources = [word for inventory in inventories for word in ("-i", inventory)]
    command = [str(root / ".venv/bin/ansible-inventory"), *sources, "--list"]
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        # Without a terminal nobody is asked for the password of a vault, which ansible-playbook does anyway.
        start_new_session=True,
        env={**os.environ, "ANSIBLE_ASK_VAULT_PASS": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        return None
    try:
        found: Inventory = json.loads(run.stdout)
    except ValueError:
        return None
    return found


def is_vaulted(inventory: Path) -> bool:
    """Whether only ansible-playbook can read it, which is given the password."""
    files = [path for path in inventory.iterdir() if path.is_file()] if inventory.is_dir() else [inventory]
    return any(_beginning(path) == VAULT for path in files)


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(VAULT))
    except OSError:
        return b""


def hosts_of(inventory: Inventory, group: str) -> set[str]:
    """The machines of a group and of the groups below it."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [group]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            entry = inventory.get(name, {})
            found |= set(entry.get("hosts", ()))
            waiting += entry.get("children", ())
    return found


def problem(inventory: Inventory) -> str | None:
    """A sentence where the group holds no machine."""
    if hosts_of(inventory, GROUP):
        return None
    others = sorted(name for name in inventory if name not in ("_meta", "all") and hosts_of(inventory, name))
    where = f"Groups with machines are: {', '.join(others)}." if others else "It names no machine at all."
    return (
        f"the inventory has no machine in the group '{GROUP}', so there is nothing to do. {where} "
        "inventory/hosts.example.yml shows how it is written: the machine's name below 'hosts:', with a "
        "colon after it."
    )


def main(root: str, lines: list[str]) -> int:
    """Print the problem; 1 if there is one."""
    inventory = None if any(is_vaulted(Path(line)) for line in lines) else listed(Path(root), lines)
    told = None if inventory is None else problem(inventory)
    if told:
        print(f"box: {told}", file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read().splitlines()))
