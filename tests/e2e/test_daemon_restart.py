"""The Docker daemon stops with everything on it and comes back, as at a reboot: all engines start at once."""

from __future__ import annotations

import subprocess

import httpx
from asking import embed, name_capital, official_client
from rehearsal_box import ADMIN, REPOSITORY, Deployed, admin, container_ids, service_status

from tests.standin.processes import wait_until


def restart_daemon() -> None:
    command = ["ansible-playbook", "-i", "localhost,", "tests/daemon.yml", "-e", "daemon_state=restarted"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def router_answers() -> bool:
    try:
        return httpx.get(f"{ADMIN}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_after_the_daemon_was_restarted_every_service_answers_again(deployed: Deployed) -> None:
    deployed.box.succeed("rehearse")
    before = container_ids()
    admin("/admin/services/embed/sleep")
    restart_daemon()
    wait_until(router_answers, what="the router")
    assert container_ids() == before
    client = official_client()
    name_capital(client)
    embed(client)
    assert [service_status(name)["conditions"] for name in ("text", "embed")] == [[], []]
    assert deployed.box.succeed("rehearse").changed == 0
    assert container_ids() == before
