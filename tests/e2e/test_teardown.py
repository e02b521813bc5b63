"""`./box rehearse --down` stops what runs and keeps what was learnt. The last of these tests."""

from __future__ import annotations

from rehearsal_box import INSTANCE, ROOT, STATE, Deployed, container_ids, docker


def test_down_removes_containers_and_networks_and_keeps_the_rest(deployed: Deployed) -> None:
    down = deployed.box.succeed("rehearse", "--down")
    assert down.changed == 2, "what runs, and vllmctl, which nothing needs any more"
    assert container_ids() == {}
    label = f"label=vllm-frontdoor.instance={INSTANCE}"
    assert docker("network", "ls", "--quiet", "--filter", label) == ""
    assert ROOT.exists()
    assert STATE.exists()


def test_down_again_changes_nothing(deployed: Deployed) -> None:
    assert deployed.box.succeed("rehearse", "--down").changed == 0


def test_status_of_a_stopped_box_says_what_to_do(deployed: Deployed) -> None:
    assert "./box rehearse starts it" in deployed.box.refuse("status").output
