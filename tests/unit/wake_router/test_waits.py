"""Hold deadlines and Retry-After."""

from __future__ import annotations

import pytest
from wake_router.lifecycle import Condition, Depth, ServiceState, Transition
from wake_router.waits import (
    Waits,
    depth_to_wake_from,
    estimated_wake_seconds,
    hold_seconds,
    preferred_wait,
    retry_after_seconds,
)

WAITS = Waits()


@pytest.mark.parametrize(
    ("depth", "hold", "retry_after"),
    [
        (Depth.SLEEPING, 30, 10),
        (Depth.OFFLOADED, 180, 60),
        (Depth.RESTARTING, 600, 600),
        (Depth.STOPPED, 30, 60),
    ],
)
def test_defaults(depth: Depth, hold: float, retry_after: int) -> None:
    assert hold_seconds(depth, WAITS, {}, None) == hold
    assert retry_after_seconds(estimated_wake_seconds(depth, WAITS, {}, 5.0), WAITS) == retry_after
    assert hold_seconds(depth, WAITS, {depth.value: (1.0, 1.0)}, None) == hold


def test_caps() -> None:
    waits = Waits(hold_max=50, retry_after_max=20)
    assert hold_seconds(Depth.RESTARTING, waits, {}, None) == 50
    assert hold_seconds(Depth.SLEEPING, waits, {}, 400) == 50
    assert hold_seconds(Depth.SLEEPING, waits, {"sleeping": [90.0] * 3}, None) == 50
    assert hold_seconds(Depth.RESTARTING, waits, {}, 0) == 0
    assert retry_after_seconds(600, waits) == 20
    assert retry_after_seconds(0, waits) == 1
    assert retry_after_seconds(1.2, waits) == 2


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("wait=5", 5),
        ("respond-async, Wait=10", 10),
        ('wait = "7"', 7),
        ("await=5", None),
        ("wait=x", None),
        ("wait=-1", None),
        ("wait=5x", None),
    ],
)
def test_prefer(header: str | None, seconds: float | None) -> None:
    assert preferred_wait(header) == seconds


def test_the_depth_that_counts_is_where_the_wake_starts() -> None:
    waking = ServiceState(depth=Depth.WAKING, from_depth=Depth.OFFLOADED, running=Transition.WAKE)
    falling = ServiceState(depth=Depth.FALLING_ASLEEP, from_depth=Depth.AWAKE, running=Transition.SLEEP)
    assert depth_to_wake_from(waking) is Depth.OFFLOADED
    assert depth_to_wake_from(falling) is Depth.SLEEPING


def test_measured_times_replace_the_defaults() -> None:
    samples = {"offloaded": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0]}
    assert estimated_wake_seconds(Depth.OFFLOADED, WAITS, samples, 0.0) == 90.0
    # Of the wakes that took longer than 45 s, the p90 of what was left.
    assert estimated_wake_seconds(Depth.OFFLOADED, WAITS, samples, 45.0) == 55.0
    assert estimated_wake_seconds(Depth.OFFLOADED, WAITS, samples, 500.0) == 50.0
    assert estimated_wake_seconds(Depth.SLEEPING, WAITS, samples, 0.0) == 10.0
    # The hold only grows: twice the p99.
    assert hold_seconds(Depth.OFFLOADED, WAITS, samples, None) == 200.0
    assert hold_seconds(Depth.OFFLOADED, WAITS, {"offloaded": [1.0] * 5}, None) == 180.0


def test_in_maintenance_requests_wait_as_for_a_restart() -> None:
    state = ServiceState(depth=Depth.AWAKE, conditions=frozenset({Condition.MAINTENANCE}))
    assert depth_to_wake_from(state) is Depth.RESTARTING
