"""How long a request waits for a service, and when its client should come back. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from wake_router.lifecycle import TARGET, Depth, ServiceState

_PREFER_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?=$|[,;\s])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Defaults and caps, in seconds."""

    hold_sleeping: float = 30.0
    hold_offloaded: float = 180.0
    hold_restarting: float = 600.0
    hold_max: float = 600.0
    retry_after_sleeping: float = 10.0
    retry_after_offloaded: float = 60.0
    retry_after_restarting: float = 600.0
    retry_after_max: float = 600.0


def depth_to_wake_from(state: ServiceState) -> Depth:
    """The resting depth that a request finds: where a wake under way started, or where a descent will end."""
    if state.depth is Depth.WAKING:
        return state.from_depth
    if state.depth is Depth.FALLING_ASLEEP and state.running is not None:
        return TARGET[state.running]
    return state.depth


def hold_seconds(depth: Depth, waits: Waits, wished: float | None) -> float:
    """How long a request may be held, from its arrival on; `wished` is the client's `Prefer: wait=N`."""
    if wished is not None:
        return min(wished, waits.hold_max)
    match depth:
        case Depth.OFFLOADED:
            seconds = waits.hold_offloaded
        case Depth.RESTARTING:
            seconds = waits.hold_restarting
        case _:
            seconds = waits.hold_sleeping
    return min(seconds, waits.hold_max)


def estimated_wake_seconds(depth: Depth, waits: Waits) -> float:
    """How long it will take until a service at `depth` serves again."""
    match depth:
        case Depth.RESTARTING:
            return waits.retry_after_restarting
        case Depth.OFFLOADED | Depth.STOPPED:
            return waits.retry_after_offloaded
        case _:
            return waits.retry_after_sleeping


def retry_after_seconds(estimate: float, waits: Waits) -> int:
    """The Retry-After header for an estimate: whole seconds, at least 1, capped."""
    return max(1, min(int(estimate + 0.999), int(waits.retry_after_max)))


def preferred_wait(header: str | None) -> float | None:
    """N of a `Prefer: wait=N` header (RFC 7240), in seconds; None when there is none."""
    found = _PREFER_WAIT.search(header) if header else None
    return float(found.group(1)) if found else None
