"""Single decisions of the pure core, each in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from wake_router import lifecycle, scheduler
from wake_router.askers import Asking
from wake_router.explain import explain
from wake_router.lifecycle import (
    Condition,
    Depth,
    Event,
    Hold,
    HoldEnded,
    MaintenanceEnded,
    Observed,
    Ordered,
    Policy,
    Presence,
    Record,
    RequestArrived,
    RequestEnded,
    RestartOrdered,
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


@pytest.mark.parametrize(
    ("record", "asleep", "depth"),
    [
        (None, True, Depth.SLEEPING),
        (None, False, Depth.AWAKE),
        (Record(incarnation="a", depth=Depth.AWAKE), True, Depth.SLEEPING),
        (Record(incarnation="a", depth=Depth.SLEEPING), False, Depth.AWAKE),
        (Record(incarnation="a", depth=Depth.OFFLOADED, open_step=Step.RELOAD_WEIGHTS), False, Depth.AWAKE),
        (Record(incarnation="a", depth=Depth.SLEEPING, proven=False), True, Depth.SLEEPING),
    ],
)
def test_weights_that_may_not_be_reloaded_are_proven_by_the_canary(
    record: Record | None, asleep: bool, depth: Depth
) -> None:
    belief = believed_depth(record, "a", asleep, False, reload_trusted=False)
    assert (belief.depth, belief.proven) == (depth, False)
    assert believed_depth(record, "a", asleep, False).depth is Depth.OFFLOADED


def test_a_service_that_is_not_proven_serves_nobody_before_its_canary() -> None:
    policy = replace(POLICY, reload_trusted=False)
    state, _ = lifecycle.step(ServiceState(), policy, Observed(0, Presence.UP, "one", False), 1.0)
    assert (state.depth, state.serving, state.queued) == (Depth.AWAKE, False, Transition.WAKE)
    state, effects = lifecycle.step(state, policy, RequestArrived(), 1.0)
    assert Hold() in effects
    assert lifecycle.steps_of(Transition.WAKE, Depth.AWAKE) == (Step.CANARY,)
    state, _ = lifecycle.step(state, policy, lifecycle.TurnGranted(), 1.0)
    state, effects = lifecycle.step(state, policy, TransitionSucceeded(state.epoch), 2.0)
    assert state.serving and lifecycle.ReleaseHeld() in effects


def test_a_process_that_began_in_this_life_is_new_although_nobody_saw_it_boot() -> None:
    look = Observed(0, Presence.UP, "one", False, born_here=True)
    state, _ = lifecycle.step(ServiceState(), POLICY, look, 1.0)
    assert (state.depth, state.serving, state.fresh) == (Depth.AWAKE, True, True)
    slept = replace(look, asleep=True)
    state, _ = lifecycle.step(ServiceState(), POLICY, slept, 1.0)
    assert (state.depth, state.fresh) == (Depth.OFFLOADED, False)
    left = ServiceState(record=Record(incarnation="one", depth=Depth.OFFLOADED))
    state, _ = lifecycle.step(left, POLICY, look, 1.0)
    assert not state.fresh, "what is on record about this very process counts"


def test_a_quarantined_engine_gets_a_new_process_where_its_launcher_takes_orders() -> None:
    quarantined = ServiceState(
        depth=Depth.OFFLOADED, incarnation="one", conditions=frozenset({Condition.QUARANTINED})
    )
    assert lifecycle.wanted_transition(quarantined, POLICY, 1.0) is Transition.WAKE
    policy = replace(POLICY, restartable=True)
    assert lifecycle.wanted_transition(quarantined, policy, 1.0) is Transition.RESTART
    refused = replace(quarantined, restart_refused=True)
    assert lifecycle.wanted_transition(refused, policy, 1.0) is Transition.WAKE


def test_a_new_process_after_a_failure_has_to_prove_itself_and_failures_add_up_until_then() -> None:
    policy = replace(POLICY, restartable=True)
    state, _ = lifecycle.step(awake(failures=2), policy, lifecycle.Distrusted(0, "garbage"), 1.0)
    state, _ = lifecycle.step(state, policy, Observed(state.epoch, Presence.BOOTING), 2.0)
    state, _ = lifecycle.step(state, policy, Observed(state.epoch, Presence.UP, "two", False), 3.0)
    assert state.conditions == {Condition.UNPROVEN}
    assert state.failures == 3
    assert state.queued is Transition.WAKE


def out_of_memory(fleet: Fleet, name: str, now: float) -> Fleet:
    epoch = fleet.members[name].state.epoch
    return after(fleet, (name, TransitionFailed(epoch, "no memory", out_of_memory=True)), now=now)


def crowded(**neighbours: ServiceState) -> Fleet:
    asleep = ServiceState(depth=Depth.SLEEPING, incarnation="zero", last_activity=5.0)
    return after(fleet_of(needy=asleep, **neighbours), ("needy", RequestArrived()), now=6.0)


def test_the_neighbour_that_was_idle_the_longest_makes_room() -> None:
    fleet = crowded(late=awake(last_activity=4.0), early=awake(last_activity=2.0))
    fleet = out_of_memory(fleet, "needy", 6.5)
    assert fleet.running == (Turn("early", Transition.SLEEP),)
    assert fleet.waiting == (Turn("needy", Transition.WAKE),)
    epoch = fleet.members["early"].state.epoch
    fleet = after(fleet, ("early", TransitionSucceeded(epoch)), now=7.0)
    assert fleet.running == (Turn("needy", Transition.WAKE),)
    assert fleet.members["needy"].state.conditions == {Condition.UNPROVEN}
    fleet = out_of_memory(fleet, "needy", 7.5)
    assert fleet.running == (Turn("late", Transition.SLEEP),)


@pytest.mark.parametrize(
    "busy", [{"in_flight": 1}, {"pinned": True}, {"conditions": frozenset({Condition.MAINTENANCE})}]
)
def test_nobody_who_is_needed_makes_room(busy: dict[str, object]) -> None:
    fleet = out_of_memory(crowded(other=awake(maintenance_until=1e9, **busy)), "needy", 6.5)
    assert (fleet.running, fleet.waiting) == ((), ())
    state = fleet.members["needy"].state
    assert (state.depth, state.held, state.retry_at) == (Depth.SLEEPING, 1, 11.5)
    fleet = after(fleet, ("needy", Tick()), now=11.5)
    assert fleet.running == (Turn("needy", Transition.WAKE),)


def test_a_neighbour_who_is_asked_meanwhile_stays_awake() -> None:
    fleet = crowded(other=awake(last_activity=4.0), boot=ServiceState())
    # Something boots, so that nobody's turn comes at once.
    fleet = after(fleet, ("boot", Observed(0, Presence.BOOTING)), now=6.2)
    fleet = out_of_memory(fleet, "needy", 6.5)
    assert fleet.members["other"].state.evicted_for == "needy"
    fleet = after(fleet, ("other", RequestArrived()), now=6.6)
    assert fleet.members["other"].state.evicted_for is None
    assert fleet.waiting == (Turn("needy", Transition.WAKE),)


def test_tries_for_memory_are_bounded() -> None:
    fleet, now = crowded(), 6.0
    for _ in range(lifecycle.MEMORY_RETRIES):
        fleet = out_of_memory(fleet, "needy", now)
        assert not fleet.members["needy"].state.conditions & {Condition.QUARANTINED}
        now += 4000
        fleet = after(fleet, ("needy", Tick()), now=now)
    fleet = out_of_memory(fleet, "needy", now)
    assert fleet.members["needy"].state.conditions == {Condition.QUARANTINED}


def test_explanations() -> None:
    fleet = fleet_of(text=awake(), ocr=ServiceState(depth=Depth.RESTARTING))
    fleet = after(fleet, ("text", Tick()), now=20.0)
    text = " ".join(explain(fleet, "text", 20.0, "allowed by the registry", Asking()))
    for part in (
        "awake since 20 s",
        "sleep waits for its turn on gpu behind ocr",
        "offloaded in 80 s",
        "registry",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"depth": Depth.FALLING_ASLEEP}, "It is falling asleep since 20 s"),
        ({"conditions": frozenset({Condition.QUARANTINED}), "failures": 1}, "It has failed once; the next"),
        (
            {"conditions": frozenset({Condition.QUARANTINED}), "failures": 3},
            "It has failed 3 times; the next",
        ),
        ({"memory_retries": 1}, "Its wake has found too little device memory once."),
        ({"queued": Transition.WAKE}, "Its wake waits for its turn on gpu."),
    ],
)
def test_an_explanation_reads_like_a_sentence(changes: dict[str, Any], told: str) -> None:
    state = replace(ServiceState(depth=Depth.SLEEPING), **changes)
    fleet = fleet_of(text=state)
    assert told in " ".join(explain(fleet, "text", 20.0, "never proven", Asking()))


def test_what_is_cordoned_and_asleep_is_not_said_to_be_offloaded_soon() -> None:
    """From sleep, the way to level 2 is a wake."""
    member = fleet_of(text=ServiceState(depth=Depth.SLEEPING, incarnation="one")).members["text"]
    cordoned = Fleet(members={"text": replace(member, policy=replace(POLICY, cordoned=True))})
    told = " ".join(explain(cordoned, "text", 20.0, "allowed", Asking(), ["gpu0"]))
    assert "Its device gpu0 is cordoned: it isn't woken (vllmctl uncordon gpu0)." in told
    assert "it is offloaded in" not in told
    free = " ".join(explain(Fleet(members={"text": member}), "text", 20.0, "allowed", Asking()))
    assert "it is offloaded in 80 s" in free


@pytest.mark.parametrize(
    ("pinned", "waited", "reason"),
    [(True, 0.0, "it was pinned"), (False, 200.0, "on its way to level 2")],
    ids=["pinned", "idle for long"],
)
def test_a_wake_without_a_request_has_one_reason(pinned: bool, waited: float, reason: str) -> None:
    state = ServiceState(depth=Depth.SLEEPING, incarnation="one", pinned=pinned)
    fleet = after(fleet_of(text=state), ("text", Tick()), now=waited)
    assert fleet.members["text"].state.depth is Depth.WAKING
    assert fleet.members["text"].state.reason == reason


def test_only_a_wake_is_kept_from_by_a_cordon() -> None:
    """For each depth and order: what `needs_wake` says is what the core does on a cordoned device."""
    for depth in (Depth.AWAKE, Depth.SLEEPING, Depth.OFFLOADED):
        for wanted in (Depth.AWAKE, Depth.SLEEPING, Depth.OFFLOADED):
            member = fleet_of(text=ServiceState(depth=depth, incarnation="one")).members["text"]
            cordoned = Fleet(members={"text": replace(member, policy=replace(POLICY, cordoned=True))})
            state = after(cordoned, ("text", Ordered(wanted)), now=1.0).members["text"].state
            stuck = state.ordered is wanted and state.running is None
            assert lifecycle.needs_wake(depth, wanted) == stuck, (depth, wanted)


@pytest.mark.parametrize(
    ("depth", "held"),
    [(Depth.RESTARTING, 1), (Depth.WAKING, 1), (Depth.STOPPED, 1), (Depth.SLEEPING, 0), (Depth.OFFLOADED, 0)],
)
def test_on_a_cordoned_device_a_request_waits_for_what_comes_up_by_itself(depth: Depth, held: int) -> None:
    member = fleet_of(text=ServiceState(depth=depth)).members["text"]
    cordoned = Fleet(members={"text": replace(member, policy=replace(POLICY, cordoned=True))})
    assert after(cordoned, ("text", RequestArrived()), now=1.0).members["text"].state.held == held


# ---- wishes that outlive their requests


def parked(**fields: object) -> ServiceState:
    return awake(conditions=frozenset({Condition.MAINTENANCE}), maintenance_until=1000.0, **fields)


def test_a_request_held_in_maintenance_does_not_undo_the_next_sleep() -> None:
    fleet = fleet_of(text=parked())
    fleet = after(
        fleet, ("text", RequestArrived()), ("text", MaintenanceEnded()), ("text", RequestEnded()),
        ("text", Ordered(Depth.SLEEPING)),
    )  # fmt: skip
    assert fleet.members["text"].state.running is Transition.SLEEP
    fleet = after(fleet, ("text", TransitionSucceeded(fleet.members["text"].state.epoch)))
    assert (fleet.members["text"].state.depth, fleet.waiting) == (Depth.SLEEPING, ())


def test_nor_does_a_request_that_a_sleep_without_space_on_the_disk_has_let_pass() -> None:
    fleet = after(fleet_of(text=awake()), ("text", Ordered(Depth.SLEEPING)), ("text", RequestArrived()))
    epoch = fleet.members["text"].state.epoch
    fleet = after(fleet, ("text", TransitionFailed(epoch, "no space", untouched=True)))
    state = fleet.members["text"].state
    assert (state.depth, state.in_flight, state.called) == (Depth.AWAKE, 1, False)


def test_a_person_who_wants_it_asleep_is_heard_after_clients_who_have_left() -> None:
    asleep = ServiceState(depth=Depth.SLEEPING, incarnation="one")
    waits = fleet_of(text=asleep, ocr=ServiceState(depth=Depth.RESTARTING))
    waits = after(waits, ("text", RequestArrived()))
    left = after(waits, ("text", HoldEnded()), ("text", Ordered(Depth.SLEEPING)))
    assert left.waiting == ()
    assert left.members["text"].state.waking_since is None, "the next wake's time doesn't begin here"
    still_there = after(waits, ("text", Ordered(Depth.SLEEPING)))
    assert still_there.waiting == (Turn("text", Transition.WAKE),)


def test_a_restart_that_was_refused_does_not_lengthen_the_next_wake() -> None:
    fleet = after(fleet_of(text=parked()), ("text", RestartOrdered()))
    state = fleet.members["text"].state
    assert (state.running, state.waking_since) == (Transition.RESTART, 0.0)
    fleet = after(fleet, ("text", TransitionFailed(state.epoch, "refused")), ("text", MaintenanceEnded()))
    assert fleet.members["text"].state.serving
    assert fleet.members["text"].state.waking_since is None
