"""What it means that an engine is seen: it has left, is another one, or isn't as it was left. Pure."""

from __future__ import annotations

from dataclasses import replace

from wake_router.beliefs import Belief, believed_depth, uncertain
from wake_router.messages import (
    AbandonTransition,
    CancelTurn,
    Effect,
    EndTurn,
    Event,
    Observed,
    ReleaseHeld,
    Remember,
)
from wake_router.service_state import (
    PARKED,
    REPAIR,
    RESTING,
    Condition,
    Depth,
    Policy,
    Presence,
    Record,
    ServiceState,
)
from wake_router.wishes import repairing

Outcome = tuple[ServiceState, tuple[Effect, ...]]


def release(state: ServiceState) -> Outcome:
    """Held requests go in flight in the same step in which the service becomes ready to serve."""
    if not state.serving or not state.held:
        return state, ()
    return replace(state, in_flight=state.in_flight + state.held, held=0), (ReleaseHeld(),)


def observed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    """Apply a look at the engine."""
    assert isinstance(event, Observed)
    if event.presence is not Presence.UP:
        return engine_left(state, event.presence, now)
    if event.incarnation is None:
        return state, ()
    if state.incarnation is None and event.epoch != state.epoch:
        return state, ()  # a look that began before the engine left
    if event.incarnation != state.incarnation:
        return _appeared(state, policy, event, now) if event.asleep is not None else (state, ())
    if event.epoch == state.epoch and event.asleep and state.depth is Depth.AWAKE:
        belief = uncertain("something else put it to sleep", True, policy.reload_trusted)
        conditions = state.conditions if belief.proven else state.conditions | {Condition.UNPROVEN}
        state = replace(state, depth=belief.depth, since=now, conditions=conditions, reason=belief.reason)
        return state, (Remember(event.incarnation, Depth.OFFLOADED, proven=False),)
    return state, ()


def engine_left(state: ServiceState, presence: Presence, now: float) -> Outcome:
    """The engine isn't there any more, or not yet; what was being done to it is over."""
    depth = Depth.STOPPED if presence is Presence.ABSENT else Depth.RESTARTING
    booting = state.seen_booting or presence is Presence.BOOTING
    if state.depth is depth:
        return replace(state, seen_booting=booting), ()
    effects: tuple[Effect, ...] = ()
    if state.running is not None:
        effects += (AbandonTransition(), EndTurn())
    if state.queued is not None:
        effects += (CancelTurn(),)
    reason = "the engine doesn't answer" if presence is Presence.ABSENT else "the engine is starting"
    state = replace(
        state,
        depth=depth,
        since=now,
        conditions=state.conditions - REPAIR - {Condition.UNPROVEN},
        fresh=False,
        restart_ordered=state.restart_ordered and state.incarnation is None and state.running is None,
        waking_since=now if state.waking_since is None else state.waking_since,
        seen_booting=booting,
        record=_remembered(state),
        incarnation=None,
        queued=None,
        running=None,
        epoch=state.epoch + 1,
        reason=reason,
    )
    return state, effects


def _remembered(state: ServiceState) -> Record | None:
    """What to believe if the very same incarnation comes back (a network that was away for a moment)."""
    if state.incarnation is None:
        return state.record
    known = state.depth in RESTING and not repairing(state) and Condition.UNPROVEN not in state.conditions
    depth = state.depth if known else Depth.OFFLOADED
    return Record(incarnation=state.incarnation, depth=depth, proven=known)


def _appeared(state: ServiceState, policy: Policy, event: Observed, now: float) -> Outcome:
    assert event.incarnation is not None
    effects: tuple[Effect, ...] = ()
    if state.running is not None:
        effects += (AbandonTransition(), EndTurn())
    if state.queued is not None:
        effects += (CancelTurn(),)
    record = _remembered(state)
    # One that starts within a second is never seen booting, and is new all the same.
    is_new = record.incarnation != event.incarnation if record else state.seen_booting or event.born_here
    belief = believed_depth(record, event.incarnation, bool(event.asleep), is_new, policy.reload_trusted)
    depth = belief.depth
    distrusted = state.suspect or repairing(state) or (record is not None and not record.proven)
    if is_new and depth is Depth.AWAKE and distrusted:
        belief = Belief(depth, "a new engine process after a failure", proven=False)
    suspicion: frozenset[Condition] = frozenset() if belief.proven else frozenset({Condition.UNPROVEN})
    state = replace(
        state,
        depth=depth,
        since=now,
        conditions=(state.conditions - REPAIR - {Condition.UNPROVEN}) | suspicion,
        incarnation=event.incarnation,
        fresh=is_new and depth is Depth.AWAKE,
        waking_since=None if belief.proven else state.waking_since,
        seen_booting=False,
        record=None,
        queued=None,
        running=None,
        epoch=state.epoch + 1,
        # Failures of a process that is gone are forgotten when the next one has proven itself.
        failures=0 if is_new and belief.proven else state.failures,
        retry_at=0.0 if is_new else state.retry_at,
        restart_ordered=False,
        restart_refused=state.restart_refused and not is_new,
        memory_retries=0 if is_new else state.memory_retries,
        last_activity=now,
        reason=belief.reason,
    )
    state, released = release(state)
    return state, (*effects, Remember(event.incarnation, depth, belief.proven), *released)


def moved(state: ServiceState, now: float) -> ServiceState:
    """The state of a service whose engine is another one now: unknown, but its requests stay counted."""
    return ServiceState(
        since=now,
        last_activity=now,
        in_flight=state.in_flight,
        held=state.held,
        pinned=state.pinned,
        ordered=state.ordered,
        ordered_by=state.ordered_by,
        conditions=state.conditions & PARKED,
        drain_until=state.drain_until,
        maintenance_until=state.maintenance_until,
        parked_by=state.parked_by,
        epoch=state.epoch + 1,
        reason="the engine's address has changed",
    )
