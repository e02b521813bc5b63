"""The life of one service: a pure function of its state, an event and the time.

`step` returns the next state and the effects that somebody else (the executor) carries out. Nothing here
waits, reads a clock or talks to an engine, so every order of events can be tried in a test.

Rules that hold in every state (the property tests check them):
a request is forwarded only to a service that is proven awake; nothing is in flight while a service sleeps or
falls asleep; no failure is final.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wake_router.beliefs import (
    Belief,
    believed_depth,
)
from wake_router.messages import (
    AbandonTransition,
    CancelTurn,
    CutInFlight,
    Distrusted,
    DrainOrdered,
    Effect,
    EndTurn,
    Event,
    Evicted,
    Forward,
    Hold,
    HoldEnded,
    MaintenanceEnded,
    MaintenanceOrdered,
    NeedMemory,
    NothingToEvict,
    Observed,
    Ordered,
    OrderWithdrawn,
    PinChanged,
    Refusal,
    Refuse,
    RefuseHeld,
    ReleaseHeld,
    Remember,
    RememberParked,
    RequestArrived,
    RequestEnded,
    RequestTurn,
    RestartOrdered,
    RestartWithdrawn,
    StartTransition,
    Tick,
    TransitionFailed,
    TransitionSucceeded,
    TurnGranted,
)
from wake_router.service_state import (
    PARKED,
    REPAIR,
    RESTING,
    TARGET,
    Condition,
    Depth,
    Policy,
    Presence,
    Record,
    ServiceState,
    Step,
    Transition,
    steps_of,
)
from wake_router.sightings import Outcome, engine_left, observed, release
from wake_router.wishes import (
    at_least_as_deep,
    needs_wake,
    pinned,
    repairing,
    wanted_transition,
)

__all__ = [
    "BACK_OFF_MAX_SECONDS",
    "MEMORY_RETRIES",
    "PARKED",
    "REPAIR",
    "RESTING",
    "TARGET",
    "AbandonTransition",
    "Belief",
    "CancelTurn",
    "Condition",
    "CutInFlight",
    "Depth",
    "Distrusted",
    "DrainOrdered",
    "Effect",
    "EndTurn",
    "Event",
    "Evicted",
    "Forward",
    "Hold",
    "HoldEnded",
    "MaintenanceEnded",
    "MaintenanceOrdered",
    "NeedMemory",
    "NothingToEvict",
    "Observed",
    "OrderWithdrawn",
    "Ordered",
    "Outcome",
    "PinChanged",
    "Policy",
    "Presence",
    "Record",
    "Refusal",
    "Refuse",
    "RefuseHeld",
    "ReleaseHeld",
    "Remember",
    "RememberParked",
    "RequestArrived",
    "RequestEnded",
    "RequestTurn",
    "RestartOrdered",
    "RestartWithdrawn",
    "ServiceState",
    "StartTransition",
    "Step",
    "Tick",
    "Transition",
    "TransitionFailed",
    "TransitionSucceeded",
    "TurnGranted",
    "at_least_as_deep",
    "back_off_seconds",
    "believed_depth",
    "needs_wake",
    "step",
    "steps_of",
    "wanted_transition",
]
"""The pure core of one service, which others import from here."""

BACK_OFF_FIRST_SECONDS: Final = 5.0
BACK_OFF_FACTOR: Final = 4.0
BACK_OFF_MAX_SECONDS: Final = 3600.0
FAILURES_UNTIL_FAILED: Final = 4
"""After so many failures in a row a service is `failed`: still retried, at least hourly, and on order."""
MEMORY_RETRIES: Final = 3
"""How often a wake that failed for lack of device memory is tried again before it counts as failed. What it
has mapped until then stays mapped (vLLM 0.27.1 to 0.32.0), so more tries make it worse, not better."""


def step(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    """Apply one event at time `now` (monotonic seconds), then decide what to do next."""
    handler = _HANDLERS[type(event)]
    state, effects = handler(state, policy, event, now)
    if state.conditions & PARKED:
        state, more = _pass_through_maintenance(state, now)
        effects += more
    state = _without_answered_wishes(_without_eviction(_without_reached_order(state), policy))
    state, more = _settle(state, policy, now)
    return state, effects + more


def _pass_through_maintenance(state: ServiceState, now: float) -> Outcome:
    """Draining ends when nothing is in flight any more; maintenance ends at its limit."""
    if Condition.DRAINING in state.conditions:
        if state.in_flight == 0:
            conditions = (state.conditions - {Condition.DRAINING}) | {Condition.MAINTENANCE}
            return replace(state, conditions=conditions), ()
        if now >= state.drain_until:
            cut = CutInFlight("the service is being drained and the deadline has passed")
            return replace(state, drain_until=float("inf")), (cut,)
    elif now >= state.maintenance_until:
        return _end_maintenance(state)
    return state, ()


def _end_maintenance(state: ServiceState) -> Outcome:
    state, effects = release(replace(state, conditions=state.conditions - PARKED))
    return state, (RememberParked(None), *effects)


def _without_reached_order(state: ServiceState) -> ServiceState:
    if state.ordered is None or repairing(state) or not at_least_as_deep(state.depth, state.ordered):
        return state
    if state.ordered is Depth.AWAKE and Condition.UNPROVEN in state.conditions:
        return state
    return replace(state, ordered=None)


def _without_answered_wishes(state: ServiceState) -> ServiceState:
    """Requests need no wake of an engine that is awake: what its conditions still ask for (its canary, the
    end of maintenance) comes without a call, and a call that outlived its request would undo the next sleep.
    """
    if state.called and state.depth is Depth.AWAKE:
        state = replace(state, called=False)
    if state.waking_since is not None and state.serving:
        state = replace(state, waking_since=None)
    return state


def _without_eviction(state: ServiceState, policy: Policy) -> ServiceState:
    """Nobody falls asleep for a neighbour who is wanted, held or trusted no more himself."""
    if state.evicted_for is None:
        return state
    wanted = state.in_flight or state.held or state.ordered is Depth.AWAKE or pinned(state, policy)
    going = state.depth in (Depth.AWAKE, Depth.FALLING_ASLEEP)
    return replace(state, evicted_for=None) if wanted or state.conditions or not going else state


def _settle(state: ServiceState, policy: Policy, now: float) -> Outcome:
    """Queue for the transition that is wanted now; leave the queue if none is wanted any more."""
    wanted = wanted_transition(state, policy, now)
    if wanted is state.queued:
        return state, ()
    effects: tuple[Effect, ...] = ()
    if state.queued is not None:
        effects += (CancelTurn(),)
    if wanted is not None:
        effects += (RequestTurn(wanted),)
    waking_since = state.waking_since
    if wanted in (Transition.WAKE, Transition.RESTART):
        if waking_since is None and not state.serving:
            waking_since = now
    elif wanted is None and not state.held and not state.conditions:
        waking_since = None  # called off: the next wake's time doesn't begin here
    return replace(state, queued=wanted, waking_since=waking_since), effects


# ---- handlers


def _request_arrived(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    if state.serving:
        return replace(state, in_flight=state.in_flight + 1, last_activity=now), (Forward(),)
    state = replace(state, last_activity=now)
    if repairing(state):
        return state, (Refuse(Refusal.QUARANTINED, state.reason),)
    if policy.cordoned and needs_wake(state.depth, Depth.AWAKE) and not state.conditions & PARKED:
        return state, (Refuse(Refusal.CORDONED, "its device is cordoned"),)
    if state.held >= policy.held_max:
        return state, (Refuse(Refusal.QUEUE_FULL, f"its queue is full ({state.held} waiting)"),)
    return replace(state, held=state.held + 1, called=True), (Hold(),)


def _request_ended(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, in_flight=state.in_flight - 1, last_activity=now), ()


def _hold_ended(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, held=state.held - 1), ()


def _ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Ordered)
    if event.depth is Depth.AWAKE:
        return replace(state, ordered=event.depth, ordered_by=event.by, last_activity=now), ()
    # Newer than the wish of clients who have left; those who still wait are answered all the same.
    called = state.called and state.held > 0
    return replace(state, ordered=event.depth, ordered_by=event.by, called=called), ()


def _order_withdrawn(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, ordered=None), ()


def _pin_changed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, PinChanged)
    return replace(state, pinned=event.pinned), ()


def _turn_granted(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    transition = state.queued
    assert transition is not None
    assert state.incarnation is not None or transition is Transition.RESTART
    descends = transition in (Transition.SLEEP, Transition.OFFLOAD)
    underway = Depth.FALLING_ASLEEP if descends else Depth.WAKING
    from_depth = Depth.OFFLOADED if repairing(state) else state.depth
    state = replace(
        state,
        depth=underway,
        since=now,
        from_depth=from_depth,
        queued=None,
        running=transition,
        epoch=state.epoch + 1,
        reason=_reason_for(state, policy, transition),
    )
    start = StartTransition(
        transition,
        from_depth,
        state.incarnation or "",
        state.epoch,
        state.fresh,
        repairing(state),
        Condition.UNPROVEN in state.conditions,
    )
    return state, (start,)


def _reason_for(state: ServiceState, policy: Policy, transition: Transition) -> str:
    if repairing(state):
        return f"repairing: {state.reason}"
    if transition is Transition.RESTART:
        ordered = f"ordered by {state.ordered_by}: restart"
        return ordered if state.restart_ordered else "its weights may not be reloaded"
    if state.ordered is not None:
        return f"ordered by {state.ordered_by}: {state.ordered}"
    if state.evicted_for is not None:
        return f"'{state.evicted_for}' needs the memory of its device"
    if Condition.UNPROVEN in state.conditions:
        return f"its canary has to prove it: {state.reason}"
    if transition is Transition.WAKE:
        if state.called or state.held:
            return "requests ask for it"
        return "it was pinned" if pinned(state, policy) else "on its way to level 2"
    return "idle"


def _transition_succeeded(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, TransitionSucceeded)
    if event.epoch != state.epoch or state.running is None:
        return state, ()
    if state.running is Transition.RESTART:
        return engine_left(state, Presence.BOOTING, now)
    reached = TARGET[state.running]
    only_proven = state.running is Transition.WAKE and state.from_depth is Depth.AWAKE
    state = replace(
        state,
        depth=reached,
        since=now,
        conditions=state.conditions - REPAIR - {Condition.UNPROVEN},
        fresh=state.fresh and only_proven,
        suspect=False,
        memory_retries=0,
        waking_since=None,
        running=None,
        epoch=state.epoch + 1,
        failures=0,
        retry_at=0.0,
        last_activity=now if state.ordered is Depth.AWAKE else state.last_activity,
    )
    released, effects = release(state)
    return released, (EndTurn(), *effects)


def _transition_failed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, TransitionFailed)
    if event.epoch != state.epoch or state.running is None:
        return state, ()
    if event.unreachable:
        failures = state.failures + 1
        state = replace(state, failures=failures, retry_at=now + back_off_seconds(failures))
        return engine_left(state, Presence.ABSENT, now)
    if event.out_of_memory and state.memory_retries < MEMORY_RETRIES and state.running is Transition.WAKE:
        return _ran_out_of_memory(state, event, now)
    if event.untouched or state.running is Transition.RESTART:
        failures = state.failures + 1
        state = replace(
            state,
            depth=state.from_depth,
            since=now,
            running=None,
            epoch=state.epoch + 1,
            failures=failures,
            retry_at=now + back_off_seconds(failures),
            ordered=None,
            evicted_for=None,
            restart_ordered=False,
            restart_refused=state.restart_refused or state.running is Transition.RESTART,
            reason=event.reason,
        )
        released, effects = release(state)
        return released, (EndTurn(), *effects)
    state, effects = _quarantine(replace(state, running=None), event.reason, now)
    return state, (EndTurn(), *effects)


def _ran_out_of_memory(state: ServiceState, event: TransitionFailed, now: float) -> Outcome:
    """Not the engine's fault: it is tried again when neighbours have made room. How far it got isn't known,
    so its canary has to prove it then.
    """
    state = replace(
        state,
        depth=state.from_depth,
        since=now,
        conditions=state.conditions | {Condition.UNPROVEN},
        running=None,
        epoch=state.epoch + 1,
        fresh=False,
        memory_retries=state.memory_retries + 1,
        retry_at=now,
        reason=event.reason,
    )
    unknown = Remember(state.incarnation or "", Depth.OFFLOADED, proven=False)
    return state, (EndTurn(), unknown, NeedMemory())


def _nothing_to_evict(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, retry_at=now + back_off_seconds(state.memory_retries)), ()


def _evicted(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Evicted)
    return replace(state, evicted_for=event.beneficiary), ()


def _quarantine(state: ServiceState, reason: str, now: float) -> Outcome:
    """Trust the engine no more; what it holds counts as offloaded."""
    failures = state.failures + 1
    conditions = REPAIR if failures >= FAILURES_UNTIL_FAILED else {Condition.QUARANTINED}
    state = replace(
        state,
        depth=Depth.OFFLOADED,
        since=now,
        conditions=(state.conditions | conditions) - {Condition.UNPROVEN},
        epoch=state.epoch + 1,
        fresh=False,
        suspect=True,
        memory_retries=0,
        failures=failures,
        retry_at=now + back_off_seconds(failures),
        ordered=None,
        held=0,
        called=False,
        reason=reason,
    )
    # On the disk too: a restart of the router must not believe the engine's own word after this.
    return state, (RefuseHeld(reason), Remember(state.incarnation or "", Depth.OFFLOADED, proven=False))


def _distrusted(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Distrusted)
    if event.epoch != state.epoch or state.depth is not Depth.AWAKE:
        return state, ()
    effects: tuple[Effect, ...] = (CancelTurn(),) if state.queued is not None else ()
    state, more = _quarantine(replace(state, queued=None), event.reason, now)
    return state, (*effects, *more, CutInFlight(event.reason))


def _drain_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, DrainOrdered)
    conditions = (state.conditions - PARKED) | {Condition.DRAINING}
    state = replace(
        state,
        conditions=conditions,
        drain_until=event.until,
        maintenance_until=event.maintenance_until,
        parked_by=event.by,
    )
    return state, (RememberParked(event.maintenance_until),)


def _maintenance_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, MaintenanceOrdered)
    conditions = (state.conditions - PARKED) | {Condition.MAINTENANCE}
    state = replace(state, conditions=conditions, maintenance_until=event.until, parked_by=event.by)
    return state, (RememberParked(event.until),)


def _maintenance_end_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return _end_maintenance(state)


def _restart_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, RestartOrdered)
    return replace(state, restart_ordered=True, ordered_by=event.by), ()


def _restart_withdrawn(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, restart_ordered=False), ()


def back_off_seconds(failures: int) -> float:
    """How long to wait after the n-th failure in a row: 5, 20, 80, 320, 1280, then 3600 seconds."""
    return min(BACK_OFF_MAX_SECONDS, BACK_OFF_FIRST_SECONDS * BACK_OFF_FACTOR ** min(failures - 1, 10))


def _tick(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return state, ()


_HANDLERS: Final[dict[type, Callable[[ServiceState, Policy, Event, float], Outcome]]] = {
    RequestArrived: _request_arrived,
    RequestEnded: _request_ended,
    HoldEnded: _hold_ended,
    Ordered: _ordered,
    OrderWithdrawn: _order_withdrawn,
    PinChanged: _pin_changed,
    TurnGranted: _turn_granted,
    TransitionSucceeded: _transition_succeeded,
    TransitionFailed: _transition_failed,
    Observed: observed,
    Distrusted: _distrusted,
    DrainOrdered: _drain_ordered,
    MaintenanceOrdered: _maintenance_ordered,
    MaintenanceEnded: _maintenance_end_ordered,
    RestartOrdered: _restart_ordered,
    RestartWithdrawn: _restart_withdrawn,
    Evicted: _evicted,
    NothingToEvict: _nothing_to_evict,
    Tick: _tick,
}
