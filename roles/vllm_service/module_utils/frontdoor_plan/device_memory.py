"""What the plan allows each service of each device: the document that the router compares with what is used.

It is a file of its own beside the registry, since a router of an earlier release refuses a registry with
fields that it doesn't know, and must be there to go back to. Its schema is the router's
(`wake_router.memory_plan`); sizes are in bytes.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from .model import Device, Placement, Plan
from .sizes import claim

SCHEMA_VERSION = 1
_HOST_STEP_BYTES = 2**30 // 10
"""Another kernel counts some MiB more or less of the same host; that must not change a deployed file."""


def device_memory(plan: Plan) -> bytes:
    """The document, always the same bytes for the same plan."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "devices": [_device(plan, device) for device in plan.devices],
        "shares": [
            _share(placement, device)
            for placement in sorted(plan.placements, key=lambda each: each.service.name)
            for device in {device.key: device for device in placement.devices}.values()
        ],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _device(plan: Plan, device: Device) -> dict[str, Any]:
    """A device with its memory: a GPU's own; for a CPU device the host's, which all of them share."""
    on_cpu = device.kind == "cpu"
    host = plan.host_memory_bytes // _HOST_STEP_BYTES * _HOST_STEP_BYTES
    total = host if on_cpu else device.memory_bytes or 0
    limit = plan.host_memory_limit if on_cpu else plan.memory_limit
    return {
        "device": device.key,
        "name": device.name,
        "kind": device.kind,
        "total_bytes": total,
        "limit_bytes": int(limit * total),
    }


def _share(placement: Placement, device: Device) -> dict[str, Any]:
    """What a service may hold of a device, awake and asleep at any level.

    On CPU devices the plan knows one figure for all depths, for the whole engine: each device has its part.
    """
    memory = placement.memory
    if device.kind == "cpu":
        parts = len({each.key for each in placement.devices})
        awake = asleep = -(-memory.host.size // parts)
        measured = memory.host.measured
    else:
        share = claim(memory.fraction or Decimal(0), memory.residue, device)
        awake, asleep = int(share * (device.memory_bytes or 0)), memory.residue.size
        measured = memory.residue.measured
    return {
        "service": placement.service.name,
        "device": device.key,
        "awake_bytes": awake,
        "asleep_bytes": asleep,
        "measured": measured,
    }
