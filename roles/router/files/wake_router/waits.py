"""How long a request waits for a service, and when its client should come back. Pure; all in seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wake_router.lifecycle import PARKED, TARGET, Depth, ServiceState, Transition

_PREFER_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?=$|[,;\s])", re.IGNORECASE)

SAMPLES_NEEDED: Final = 3
"""So many measured wakes make an estimate better than the default."""

Samples = Mapping[str, Sequence[float]]
"""Measured times until a service served again, by the depth from which it woke; waiting for its turn
included.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Defaults and caps."""

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
    if state.conditions & PARKED or state.running is Transition.RESTART:
        return Depth.RESTARTING
    if state.depth is Depth.WAKING:
        return state.from_depth
    if state.depth is Depth.FALLING_ASLEEP and state.running is not None:
        return TARGET[state.running]
    return state.depth


def hold_seconds(depth: Depth, waits: Waits, samples: Samples, wished: float | None) -> float:
    """How long a request may be held, from its arrival on; `wished` is the client's `Prefer: wait=N`.

    The defaults only ever grow with measured times (twice the 99th percentile), up to the cap.
    """
    if wished is not None:
        return min(wished, waits.hold_max)
    match depth:
        case Depth.OFFLOADED:
            seconds = waits.hold_offloaded
        case Depth.RESTARTING:
            seconds = waits.hold_restarting
        case _:
            seconds = waits.hold_sleeping
    measured = samples.get(depth.value, ())
    if len(measured) >= SAMPLES_NEEDED:
        seconds = max(seconds, 2 * percentile(measured, 0.99))
    return min(seconds, waits.hold_max)


def estimated_wake_seconds(depth: Depth, waits: Waits, samples: Samples, elapsed: float) -> float:
    """How long until a service at `depth` serves again, when somebody has waited for `elapsed` already.

    The 90th percentile of what remained in those measured wakes that took longer than `elapsed`.
    """
    measured = samples.get(depth.value, ())
    if len(measured) < SAMPLES_NEEDED:
        return _default_estimate(depth, waits)
    remaining = [seconds - elapsed for seconds in measured if seconds > elapsed]
    if not remaining:
        return max(1.0, max(measured) / 2)
    return max(1.0, percentile(remaining, 0.9))


def _default_estimate(depth: Depth, waits: Waits) -> float:
    match depth:
        case Depth.RESTARTING:
            return waits.retry_after_restarting
        case Depth.OFFLOADED | Depth.STOPPED:
            return waits.retry_after_offloaded
        case _:
            return waits.retry_after_sleeping


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all values don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def retry_after_seconds(estimate: float, waits: Waits) -> int:
    """The Retry-After header for an estimate: whole seconds, at least 1, capped."""
    return max(1, min(math.ceil(estimate), int(waits.retry_after_max)))


def preferred_wait(header: str | None) -> float | None:
    """N of a `Prefer: wait=N` header (RFC 7240); None when there is none."""
    found = _PREFER_WAIT.search(header) if header else None
    return float(found.group(1)) if found else None
