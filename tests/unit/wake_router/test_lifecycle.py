"""Single decisions of the pure core, each in one place."""

from __future__ import annotations

import pytest
from wake_router import lifecycle, scheduler
from wake_router.explain import explain
from wake_router.lifecycle import (
    Condition,
    Depth,
    Event,
    HoldEnded,
    Observed,
    Ordered,
    Policy,
    Presence,
    Record,
    RequestArrived,
    RequestEnded,
    ServiceState,
    Step,
    Tick,
    Transition,
    TransitionFailed,
    TransitionSucceeded,
    back_off_seconds,
    believed_depth,
)
from wake_router.scheduler import Fleet, Member, Turn

POLICY = Policy(idle_sleep_seconds=10, idle_offload_seconds=100, level_2_allowed=True)


def awake(**fields: object) -> ServiceState:
    return ServiceState(depth=Depth.AWAKE, incarnation="one", **fields)  # type: ignore[arg-type]


def fleet_of(**states: ServiceState) -> Fleet:
    return Fleet(
        members={
            name: Member(policy=POLICY, devices=frozenset({"gpu"}), state=state)
            for name, state in states.items()
        }
    )


def after(fleet: Fleet, *events: tuple[str, Event], now: float = 0.0) -> Fleet:
    for name, event in events:
        fleet, _ = scheduler.advance(fleet, name, event, now)
    return fleet


@pytest.mark.parametrize(
    ("idle", "wanted"),
    [(9.9, None), (10, Transition.SLEEP), (99, Transition.SLEEP), (100, Transition.OFFLOAD)],
)
def test_idle_timers(idle: float, wanted: Transition | None) -> None:
    assert lifecycle.wanted_transition(awake(), POLICY, idle) is wanted
    assert lifecycle.wanted_transition(awake(in_flight=1), POLICY, idle) is None
    assert lifecycle.wanted_transition(awake(pinned=True), POLICY, idle) is None


def test_idle_counts_from_the_last_byte() -> None:
    state, _ = lifecycle.step(awake(), POLICY, RequestArrived(), 1.0)
    state, _ = lifecycle.step(state, POLICY, RequestEnded(), 50.0)
    assert lifecycle.wanted_transition(state, POLICY, 59.0) is None
    assert lifecycle.wanted_transition(state, POLICY, 60.0) is Transition.SLEEP


def test_a_sleep_that_waits_for_its_turn_is_called_off_by_a_request() -> None:
    fleet = fleet_of(text=awake(), ocr=ServiceState(depth=Depth.RESTARTING))
    fleet = after(fleet, ("text", Tick()), now=20.0)
    assert fleet.waiting == (Turn("text", Transition.SLEEP),)
    fleet = after(fleet, ("text", RequestArrived()), now=20.0)
    assert fleet.waiting == ()
    assert fleet.members["text"].state.in_flight == 1


def test_wakes_go_before_sleeps() -> None:
    fleet = fleet_of(
        boot=ServiceState(depth=Depth.RESTARTING),
        idle=awake(),
        wanted=ServiceState(depth=Depth.SLEEPING, incarnation="two", last_activity=20.0),
    )
    fleet = after(fleet, ("idle", Tick()), ("wanted", RequestArrived()), now=20.0)
    assert [turn.service for turn in fleet.waiting] == ["idle", "wanted"]
    fleet = after(fleet, ("boot", Observed(0, Presence.ABSENT)), now=20.0)
    assert fleet.running == (Turn("wanted", Transition.WAKE),)


def test_a_client_that_leaves_before_its_turn_does_not_call_the_wake_off() -> None:
    asleep = ServiceState(depth=Depth.SLEEPING, incarnation="one")
    fleet = fleet_of(text=asleep, ocr=ServiceState(depth=Depth.RESTARTING))
    fleet = after(fleet, ("text", RequestArrived()), ("text", HoldEnded()), now=1.0)
    assert fleet.waiting == (Turn("text", Transition.WAKE),)


def test_late_news_of_an_earlier_transition_changes_nothing() -> None:
    state = awake(epoch=7)
    for event in (TransitionSucceeded(6), TransitionFailed(6, "late"), Observed(6, Presence.UP, "one", True)):
        assert lifecycle.step(state, POLICY, event, 1.0)[0] == state


def test_back_off_is_hourly_at_the_latest() -> None:
    assert [back_off_seconds(failures) for failures in range(1, 8)] == [5, 20, 80, 320, 1280, 3600, 3600]
    assert back_off_seconds(10_000) == 3600


def test_orders_go_to_quarantined_services_at_once() -> None:
    state = ServiceState(
        depth=Depth.OFFLOADED,
        incarnation="one",
        conditions=frozenset({Condition.QUARANTINED}),
        retry_at=1000.0,
    )
    assert lifecycle.wanted_transition(state, POLICY, 1.0) is None
    state, _ = lifecycle.step(state, POLICY, Ordered(Depth.AWAKE), 1.0)
    assert state.queued is Transition.WAKE


@pytest.mark.parametrize(
    ("record", "asleep", "is_new", "depth"),
    [
        (None, False, False, Depth.OFFLOADED),
        (None, True, False, Depth.OFFLOADED),
        (None, False, True, Depth.AWAKE),
        (None, True, True, Depth.OFFLOADED),
        (Record(incarnation="a", depth=Depth.AWAKE), False, False, Depth.AWAKE),
        (Record(incarnation="a", depth=Depth.AWAKE), True, False, Depth.OFFLOADED),
        (Record(incarnation="a", depth=Depth.SLEEPING), True, False, Depth.SLEEPING),
        (Record(incarnation="a", depth=Depth.SLEEPING), False, False, Depth.OFFLOADED),
        (Record(incarnation="a", depth=Depth.OFFLOADED), True, False, Depth.OFFLOADED),
        (Record(incarnation="a", depth=Depth.OFFLOADED), False, False, Depth.OFFLOADED),
        *(
            (Record(incarnation="a", depth=Depth.OFFLOADED, open_step=step), asleep, False, Depth.OFFLOADED)
            for step in Step
            for asleep in (False, True)
            if step not in (Step.SLEEP_LEVEL_1, Step.WAKE_ALL)
        ),
        (
            Record(incarnation="a", depth=Depth.AWAKE, open_step=Step.SLEEP_LEVEL_1),
            True,
            False,
            Depth.SLEEPING,
        ),
        (Record(incarnation="a", depth=Depth.SLEEPING, open_step=Step.WAKE_ALL), False, False, Depth.AWAKE),
    ],
)
def test_what_is_not_certain_counts_as_offloaded(
    record: Record | None, asleep: bool, is_new: bool, depth: Depth
) -> None:
    assert believed_depth(record, "a", asleep, is_new)[0] is depth


def test_explanations() -> None:
    fleet = fleet_of(text=awake(), ocr=ServiceState(depth=Depth.RESTARTING))
    fleet = after(fleet, ("text", Tick()), now=20.0)
    text = " ".join(explain(fleet, "text", 20.0, "allowed by the registry"))
    for part in (
        "awake since 20 s",
        "sleep waits for its turn on gpu behind ocr",
        "offloaded in 80 s",
        "registry",
    ):
        assert part in text
