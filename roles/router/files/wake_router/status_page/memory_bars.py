"""Memory of devices as bars with words. Pure: figures in, markup out, styled by classes only.

Each picture is read out by its title, and says nothing that the words above it don't say.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from wake_router.admin_contract import DeviceMemory, MemoryShare
from wake_router.status_page.units import duration, size

WIDTH: Final = 200
_PLANNED_TOP, _MEASURED_TOP, _HALF, HEIGHT = 0, 6, 5, 11
_LIMIT_WIDTH: Final = 1

LEGEND: Final = (
    '<p class="small">Upper bar: what the plan allows at the present depth. Lower bar: what was measured. '
    "Upright line: the most that the plan gives away.</p>"
)


def memory_section(devices: Sequence[DeviceMemory]) -> str:
    """The section's body."""
    if not devices:
        return "<p>No device is known.</p>"
    cards = "".join(_device(device) for device in devices)
    return f'{LEGEND}{_about_cpu(devices)}<div class="cards">{cards}</div>'


def _about_cpu(devices: Sequence[DeviceMemory]) -> str:
    """What stands in for what, where there is no GPU."""
    on_cpu = [device for device in devices if device.kind == "cpu"]
    if not on_cpu:
        return ""
    used = [device.used_bytes for device in on_cpu]
    known = None if None in used else sum(each or 0 for each in used)
    limit = next((device.limit_bytes for device in on_cpu if device.limit_bytes is not None), None)
    return (
        '<p class="small">On CPU devices resident memory plays the part of a GPU\'s. Size and limit are the '
        f"host's, which all CPU devices share: together their engines hold {size(known)}, the limit is "
        f"{size(limit)}. The plan knows one figure for all depths there.</p>"
    )


def _device(device: DeviceMemory) -> str:
    rows = "".join(_service(device, share) for share in device.shares)
    nobody = "" if device.shares else "<p>No service runs on it, so nobody measures it.</p>"
    problems = "".join(f'<p class="doubt">{escape(problem)}</p>' for problem in device.problems)
    mark = '<span class="mark failed">over plan</span>' if device.over_plan else ""
    return (
        f'<div class="card memory"><h3>{escape(device.name)}</h3>{mark}'
        f'<p class="small">{escape(device.device)}</p>{rows}{nobody}{_together(device)}{problems}</div>'
    )


def _service(device: DeviceMemory, share: MemoryShare) -> str:
    depth = share.depth.value.replace("_", " ")
    words = f"{share.service}, {depth}: planned {size(share.planned_bytes)}"
    if share.asleep_bytes is not None and device.kind == "cuda":
        how = "measured" if share.asleep_is_measured else "estimated"
        words += f" (asleep {size(share.asleep_bytes)}, {how})"
    if device.kind == "cpu":
        words += f", holds {size(share.resident_bytes)}"
    return _row(device, words, share.planned_bytes, share.resident_bytes, over=False)


def _together(device: DeviceMemory) -> str:
    if not device.shares:
        return ""
    measured = f"measured {size(device.used_bytes)}"
    if device.age_seconds is not None:
        measured += f" {duration(device.age_seconds)} ago"
    words = (
        f"Together: planned {size(device.planned_bytes)}, {measured}; "
        f"limit {size(device.limit_bytes)} of {size(device.total_bytes)}"
    )
    missing = (
        "" if device.limit_bytes is not None else "<p>The plan's figures are not here: deploy again.</p>"
    )
    return _row(device, words, device.planned_bytes, device.used_bytes, over=bool(device.over_plan)) + missing


def _row(device: DeviceMemory, words: str, planned: int | None, measured: int | None, *, over: bool) -> str:
    return f"<p>{escape(words)}</p>{_bar(device, words, planned, measured, over=over)}"


def _bar(device: DeviceMemory, words: str, planned: int | None, measured: int | None, *, over: bool) -> str:
    if not device.total_bytes:
        return ""
    parts = [f'<rect class="ground" x="0" y="0" width="{WIDTH}" height="{HEIGHT}"/>']
    if planned is not None:
        parts.append(_rectangle("planned", _across(planned, device.total_bytes), _PLANNED_TOP))
    if measured is not None:
        used = "used over" if over else "used"
        parts.append(_rectangle(used, _across(measured, device.total_bytes), _MEASURED_TOP))
    if device.limit_bytes is not None:
        at = min(_across(device.limit_bytes, device.total_bytes), WIDTH - _LIMIT_WIDTH)
        parts.append(f'<rect class="limit" x="{at:.1f}" y="0" width="{_LIMIT_WIDTH}" height="{HEIGHT}"/>')
    title = escape(f"{device.name}: {words}")
    return (
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _rectangle(name: str, width: float, top: int) -> str:
    return f'<rect class="{name}" x="0" y="{top}" width="{width:.1f}" height="{_HALF}"/>'


def _across(count: int, total: int) -> float:
    """How far a size reaches; what is more than there is reaches to the end."""
    return min(WIDTH * count / total, float(WIDTH))
