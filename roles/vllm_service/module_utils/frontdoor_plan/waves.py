"""The order in which engines start: those that share a device one after the other, the others side by side.

vLLM measures the free memory of its GPU while it starts, so two that start there at once disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from .model import Placement


def waves(placements: Iterable[Placement]) -> tuple[tuple[str, ...], ...]:
    """Names of services by wave. No two of one wave share a device; lower slots come first."""
    found: list[tuple[list[str], set[str]]] = []
    for placement in sorted(placements, key=lambda each: each.service.slot):
        keys = {device.key for device in placement.devices}
        free = next((wave for wave in found if not wave[1] & keys), None)
        if free is None:
            found.append(([placement.service.name], keys))
        else:
            free[0].append(placement.service.name)
            free[1].update(keys)
    return tuple(tuple(names) for names, _ in found)
