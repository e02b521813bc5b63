from __future__ import annotations

from typing import Any

import pytest
from frontdoor_plan import UnreadableFactsError, discovered_from_box
from frontdoor_plan.discovery import weight_evidence_from_box
from plan_support import box


def test_a_recorded_box_is_read() -> None:
    found = discovered_from_box(box("three_gpus"), is_root=True)
    assert [gpu.pci_address for gpu in found.gpus] == ["0000:3d:00.0", "0000:63:00.0", "0000:ab:00.0"]
    assert found.docker.reachable
    assert found.ports == {8000: None, 8010: None}


def test_ipv6_networks_are_left_out() -> None:
    facts = box("rehearsal") | {
        "routes": [{"network": "fe80::/64", "interface": "eth0"}],
        "networks": [{"name": "six", "subnets": ["fd00::/64"], "labels": None}],
    }
    found = discovered_from_box(facts, is_root=True)
    assert found.routes == ()
    assert found.networks[0].subnets == ()


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"gpus": [{"index": 0}]},
        {"gpus": None},
        {"cpu_count": "many"},
        {"docker": None},
        {"routes": [{"network": "nowhere", "interface": "eth0"}]},
        {"paths": {"/x": None}},
        {"images": []},
    ],
)
def test_facts_of_another_shape_are_told_as_such(change: dict[str, Any]) -> None:
    with pytest.raises(UnreadableFactsError, match="take both from the same version"):
        discovered_from_box(box("rehearsal") | change, is_root=True)


@pytest.mark.parametrize(
    "change",
    [
        {"evidence": None},
        {"evidence": {"weights": None}},
        {"evidence": {"weights": ["text", {"details": None}, {"verdict": "verified"}]}},
        {"evidence": {"weights": [{"details": {"model": "/m"}, "verdict": 1, "finished_at": "x"}]}},
    ],
)
def test_evidence_that_says_nothing_counts_for_nothing(change: dict[str, Any]) -> None:
    assert weight_evidence_from_box(box("rehearsal") | change) == {}
