"""The rendering of the repository's own examples, byte by byte.

When a change is meant: `UPDATE_GOLDEN=1 pytest tests/golden` writes what is rendered now, and
`git diff tests/golden` shows what that changes on every box.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from frontdoor_plan import plan_table, render
from plan_support import BOX_OF_GROUP, LAUNCHER, box, planned, variables
from wake_router import memory_plan
from wake_router.registry import parse_registry
from wake_router.settings import read_settings

_HERE = Path(__file__).parent


def _rendered(group: str) -> dict[str, bytes]:
    plan = planned(variables(group), box(BOX_OF_GROUP[group]))
    table = (plan_table(plan) + "\n").encode("utf-8")
    return {**render(plan, LAUNCHER).files, "plan.txt": table}


def _stored(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _update(folder: Path, rendered: dict[str, bytes]) -> None:
    for path in set(_stored(folder)) - set(rendered):
        (folder / path).unlink()
    for path, content in rendered.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.mark.parametrize("group", sorted(BOX_OF_GROUP))
def test_the_rendering_is_the_stored_one(group: str) -> None:
    folder = _HERE / BOX_OF_GROUP[group]
    rendered = _rendered(group)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        _update(folder, rendered)
    assert {path: content.decode() for path, content in _stored(folder).items()} == {
        path: content.decode() for path, content in rendered.items()
    }


@pytest.mark.parametrize("group", sorted(BOX_OF_GROUP))
def test_the_router_understands_what_is_rendered_for_it(group: str) -> None:
    """The registry's schema and the settings are the router's own; the plan imports neither."""
    plan = planned(variables(group), box(BOX_OF_GROUP[group]))
    files = render(plan, LAUNCHER).files
    registry = parse_registry(files["registry/registry.json"])
    assert [service.name for service in registry.services] == [
        placement.service.name for placement in plan.placements
    ]
    assert [service.devices for service in registry.services] == [
        tuple(device.key for device in placement.devices) for placement in plan.placements
    ]
    jsonschema.validate(json.loads(files["registry/device-memory.json"]), memory_plan.schema())
    figures = memory_plan.parse_memory_plan(files["registry/device-memory.json"])
    assert [device.device for device in figures.devices] == [device.key for device in plan.devices]
    assert {(share.service, share.device) for share in figures.shares} == {
        (placement.service.name, device.key) for placement in plan.placements for device in placement.devices
    }
    lines = files["router/router.env"].decode().splitlines()
    settings = read_settings(dict(line.split("=", 1) for line in lines))
    assert settings.public_address.port == plan.instance.public_port
    assert settings.admin_address.port == plan.instance.admin_port
    assert (settings.idle_sleep_seconds, settings.idle_offload_seconds) == (15 * 60, 180 * 60)
