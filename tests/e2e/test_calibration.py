"""The rehearsal is calibrated: real engines in containers; the next plan counts with what was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from rehearsal_box import STATE, Deployed, container_ids, service_status

SERVICES = ("embed", "text")


@dataclass(frozen=True)
class Calibrated:
    """The rehearsal afterwards, and the depths that its services were at before."""

    deployed: Deployed
    depths: dict[str, str]


@pytest.fixture(scope="module")
def calibrated(deployed: Deployed) -> Calibrated:
    """One round of each service."""
    depths = {name: service_status(name)["depth"] for name in SERVICES}
    deployed.box.succeed("calibrate", "-i", "inventory/rehearsal", "-e", "calibration_rounds=1")
    return Calibrated(deployed, depths)


def test_each_service_has_its_figures(calibrated: Calibrated) -> None:
    for name in SERVICES:
        found = json.loads((STATE / "calibration" / f"{name}.json").read_bytes())
        assert (found["service"], found["device_name"]) == (name, "cpu")
        assert found["host_bytes_asleep"] > 2**30, "an engine with torch, and its KV cache of 1 GiB"
        rounds = json.loads((STATE / "calibration/measured" / f"{name}.json").read_bytes())["rounds"]
        assert set(rounds[0]["seconds"]) == {"start", "sleep", "wake", "offload", "wake_from_offloaded"}
    page = (STATE / "calibration/CALIBRATION.md").read_text()
    assert all(f"| {name} |" in page for name in SERVICES)
    picture = (STATE / "calibration/memory.svg").read_text()
    assert all(f">{name} (" in picture for name in SERVICES)
    print(page)


def test_services_are_as_they_were(calibrated: Calibrated) -> None:
    for name, depth in calibrated.depths.items():
        status = service_status(name)
        assert (status["depth"], status["conditions"]) == (depth, [])


def test_the_plan_counts_with_what_was_measured(calibrated: Calibrated) -> None:
    plan = calibrated.deployed.box.succeed("plan", "-i", "inventory/rehearsal").output
    assert all(f"{name} " in plan for name in SERVICES)
    assert "measured" in plan
    assert "estimated" not in plan


def test_the_next_run_takes_the_figures_over_and_touches_no_container(calibrated: Calibrated) -> None:
    before = container_ids()
    taken_over = calibrated.deployed.box.succeed("rehearse")
    assert taken_over.changes == ["file registry/device-memory.json: content differs, rewritten"]
    assert container_ids() == before
