"""The life of one service: a pure function of its state, an event and the time.

`step` returns the next state and the effects that somebody else (the executor) carries out. Nothing here
waits, reads a clock or talks to an engine, so every order of events can be tried in a test.

Rules that hold in every state (the property tests check them):
a request is forwarded only to a service that is proven awake; nothing is in flight while a service sleeps or
falls asleep; no failure is final.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Depth(StrEnum):
    """How far down a service is; the words users see."""

    AWAKE = "awake"
    SLEEPING = "sleeping"
    OFFLOADED = "offloaded"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    WAKING = "waking"
    FALLING_ASLEEP = "falling_asleep"


class Condition(StrEnum):
    """What holds beside the depth."""

    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    QUARANTINED = "quarantined"
    FAILED = "failed"


class Transition(StrEnum):
    """What can be done to an engine; one at a time per device."""

    WAKE = "wake"
    SLEEP = "sleep"
    OFFLOAD = "offload"


class Step(StrEnum):
    """One call of a transition. The intent store names it on disk before it is made."""

    RECORD_CANARY = "record_canary"
    SLEEP_LEVEL_1 = "sleep_level_1"
    SLEEP_LEVEL_2 = "sleep_level_2"
    WAKE_ALL = "wake_all"
    WAKE_WEIGHTS = "wake_weights"
    RELOAD_WEIGHTS = "reload_weights"
    WAKE_KV_CACHE = "wake_kv_cache"
    RESET_PREFIX_CACHE = "reset_prefix_cache"
    CANARY = "canary"


RESTING: Final = frozenset({Depth.AWAKE, Depth.SLEEPING, Depth.OFFLOADED})
"""Depths in which the engine runs and no transition is under way."""

REPAIR: Final = frozenset({Condition.QUARANTINED, Condition.FAILED})
"""Conditions under which the router doesn't trust the engine and repairs it."""

PARKED: Final = frozenset({Condition.DRAINING, Condition.MAINTENANCE})
"""Conditions under which requests wait and only what a person orders is done."""

TARGET: Final = {
    Transition.WAKE: Depth.AWAKE,
    Transition.SLEEP: Depth.SLEEPING,
    Transition.OFFLOAD: Depth.OFFLOADED,
}
BACK_OFF_FIRST_SECONDS: Final = 5.0
BACK_OFF_FACTOR: Final = 4.0
BACK_OFF_MAX_SECONDS: Final = 3600.0
FAILURES_UNTIL_FAILED: Final = 4
"""After so many failures in a row a service is `failed`: still retried, at least hourly, and on order."""


def steps_of(transition: Transition, from_depth: Depth) -> tuple[Step, ...]:
    """The engine calls of a transition, in their only right order (vLLM 0.27.1 to 0.32.0)."""
    if transition is Transition.SLEEP:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_1)
    if transition is Transition.OFFLOAD:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_2)
    if from_depth is Depth.SLEEPING:
        return (Step.WAKE_ALL, Step.CANARY)
    return (
        Step.WAKE_WEIGHTS,
        Step.RELOAD_WEIGHTS,
        Step.WAKE_KV_CACHE,
        Step.RESET_PREFIX_CACHE,
        Step.CANARY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the registry and the settings say about one service. A timer of 0 seconds is off."""

    idle_sleep_seconds: float = 900.0
    idle_offload_seconds: float = 10800.0
    pinned: bool = False
    level_2_allowed: bool = False
    held_max: int = 2048
    cordoned: bool = False


class Presence(StrEnum):
    """What can be seen of an engine's process."""

    ABSENT = "absent"
    BOOTING = "booting"
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the intent store knew about a service when the router started."""

    incarnation: str
    depth: Depth
    open_step: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """Everything the router knows about one service. Times are seconds of one monotonic clock."""

    depth: Depth = Depth.STOPPED
    since: float = 0.0
    conditions: frozenset[Condition] = frozenset()
    incarnation: str | None = None
    seen_booting: bool = False
    record: Record | None = None
    in_flight: int = 0
    held: int = 0
    last_activity: float = 0.0
    pinned: bool = False
    fresh: bool = False
    """Never put to sleep since its process started, as far as the router knows for sure."""
    called: bool = False
    """A request has asked for it since it last served. Its wake goes on even if nobody waits any more."""
    waking_since: float | None = None
    """When somebody began to wait for it to serve again."""
    drain_until: float = 0.0
    maintenance_until: float = 0.0
    ordered: Depth | None = None
    queued: Transition | None = None
    running: Transition | None = None
    from_depth: Depth = Depth.STOPPED
    epoch: int = 0
    failures: int = 0
    retry_at: float = 0.0
    reason: str = "the router has just started and looks for the engine"

    @property
    def serving(self) -> bool:
        """Whether a request may be forwarded now."""
        return self.depth is Depth.AWAKE and not self.conditions


# ---- events


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A client asks for this service. Answered by exactly one of Forward, Hold, Refuse."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The last byte of a forwarded request's response is out, or its client is gone."""


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A held request stopped waiting: its deadline passed, or its client is gone."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A person wants the service at this depth (awake, sleeping or offloaded)."""

    depth: Depth


@dataclass(frozen=True, slots=True)
class OrderWithdrawn:
    """The person who ordered a depth stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class PinChanged:
    """A person pins the service awake, or lets it sleep again."""

    pinned: bool


@dataclass(frozen=True, slots=True)
class TurnGranted:
    """The scheduler gives this service its devices for the transition it queued for."""


@dataclass(frozen=True, slots=True)
class TransitionSucceeded:
    """All steps are done and `/is_sleeping` confirmed the result. `epoch` as in StartTransition."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TransitionFailed:
    """A step failed or timed out.

    `unreachable`: nobody answered, the engine is probably gone. `untouched`: nothing has been done to the
    engine.
    """

    epoch: int
    reason: str
    unreachable: bool = False
    untouched: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """What a look at the engine showed. `epoch` is the service's when the look began."""

    epoch: int
    presence: Presence
    incarnation: str | None = None
    asleep: bool | None = None


@dataclass(frozen=True, slots=True)
class Distrusted:
    """An awake engine answered its canary wrongly, or counts corrupted answers. `epoch` as when it was
    asked.
    """

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """Take no new work; what is in flight has until `until`, then it is cut. Then maintenance follows."""

    until: float
    maintenance_until: float


@dataclass(frozen=True, slots=True)
class MaintenanceOrdered:
    """Hold requests and leave the engine alone, until it is ended or `until` has passed."""

    until: float


@dataclass(frozen=True, slots=True)
class MaintenanceEnded:
    """Draining and maintenance are over; held requests may go."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    RequestArrived
    | RequestEnded
    | HoldEnded
    | Ordered
    | OrderWithdrawn
    | PinChanged
    | TurnGranted
    | TransitionSucceeded
    | TransitionFailed
    | Observed
    | Distrusted
    | DrainOrdered
    | MaintenanceOrdered
    | MaintenanceEnded
    | Tick
)


# ---- effects


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the request to the engine now; it counts as in flight."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Let the request wait; it counts as held."""


class Refusal(StrEnum):
    """Why a request isn't even held."""

    QUEUE_FULL = "queue_full"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with 503 at once."""

    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Every held request goes to the engine, oldest first; they count as in flight already."""


@dataclass(frozen=True, slots=True)
class RefuseHeld:
    """Every held request gets a 503; they don't count as held any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestTurn:
    """Ask the scheduler for the service's devices."""

    transition: Transition


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """The service doesn't want its turn any more."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The service's devices are free again."""


@dataclass(frozen=True, slots=True)
class StartTransition:
    """Carry out a transition and report back with this epoch."""

    transition: Transition
    from_depth: Depth
    incarnation: str
    epoch: int
    fresh: bool = False
    repairing: bool = False


@dataclass(frozen=True, slots=True)
class AbandonTransition:
    """The engine it was for is gone: stop working on the transition; its result no longer matters."""


@dataclass(frozen=True, slots=True)
class CutInFlight:
    """End every request in flight visibly: an error event in a stream, a broken connection otherwise."""

    reason: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Write to the intent store that this incarnation is at this depth and nothing is under way."""

    incarnation: str
    depth: Depth


Effect = (
    Forward
    | Hold
    | Refuse
    | ReleaseHeld
    | RefuseHeld
    | RequestTurn
    | CancelTurn
    | EndTurn
    | StartTransition
    | AbandonTransition
    | CutInFlight
    | Remember
)

Outcome = tuple[ServiceState, tuple[Effect, ...]]


def step(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    """Apply one event at time `now` (monotonic seconds), then decide what to do next."""
    handler = _HANDLERS[type(event)]
    state, effects = handler(state, policy, event, now)
    if state.conditions & PARKED:
        state, more = _pass_through_maintenance(state, now)
        effects += more
    state, more = _settle(_without_reached_order(state), policy, now)
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
    return _release(replace(state, conditions=state.conditions - PARKED))


def _without_reached_order(state: ServiceState) -> ServiceState:
    if state.ordered is None or _repairing(state) or not at_least_as_deep(state.depth, state.ordered):
        return state
    return replace(state, ordered=None)


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
    if wanted is Transition.WAKE and waking_since is None:
        waking_since = now
    return replace(state, queued=wanted, waking_since=waking_since), effects


def wanted_transition(state: ServiceState, policy: Policy, now: float) -> Transition | None:
    """The transition that would bring the service where its clients, its people or its timers want it."""
    if state.depth not in RESTING:
        return None
    if state.depth is Depth.AWAKE and not _repairing(state):
        return _wanted_descent(state, policy, now)
    if _wake_wanted(state, policy, now):
        return Transition.WAKE
    return None


def _repairing(state: ServiceState) -> bool:
    return bool(state.conditions & REPAIR)


def _wake_wanted(state: ServiceState, policy: Policy, now: float) -> bool:
    if policy.cordoned or (_repairing(state) and state.in_flight):
        return False
    if state.ordered is Depth.AWAKE:
        return True
    if state.conditions & PARKED:
        return state.depth is Depth.SLEEPING and state.ordered is Depth.OFFLOADED
    if _repairing(state):
        return now >= state.retry_at
    if state.called or state.held > 0 or _pinned(state, policy):
        return True
    # A sleeping engine ignores a second /sleep (it answers 200 all the same), so the way down to level 2 is
    # up first.
    return state.depth is Depth.SLEEPING and _offload_due(state, policy, now)


def _wanted_descent(state: ServiceState, policy: Policy, now: float) -> Transition | None:
    parked = bool(state.conditions & PARKED)
    if state.in_flight or (state.held and not parked):
        return None
    if state.ordered is Depth.SLEEPING:
        return Transition.SLEEP
    if parked:
        return Transition.OFFLOAD if state.ordered is Depth.OFFLOADED else None
    if _offload_due(state, policy, now):
        return Transition.OFFLOAD
    idle = now - state.last_activity
    if policy.idle_sleep_seconds and idle >= policy.idle_sleep_seconds and not _pinned(state, policy):
        return Transition.SLEEP if now >= state.retry_at else None
    return None


def _offload_due(state: ServiceState, policy: Policy, now: float) -> bool:
    if state.ordered is Depth.OFFLOADED:
        return True
    if not policy.level_2_allowed or not policy.idle_offload_seconds or _pinned(state, policy):
        return False
    return now - state.last_activity >= policy.idle_offload_seconds and now >= state.retry_at


def _pinned(state: ServiceState, policy: Policy) -> bool:
    return policy.pinned or state.pinned


# ---- handlers


def _request_arrived(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    if state.serving:
        return replace(state, in_flight=state.in_flight + 1, last_activity=now), (Forward(),)
    state = replace(state, last_activity=now)
    if _repairing(state):
        return state, (Refuse(Refusal.QUARANTINED, state.reason),)
    if policy.cordoned and not state.conditions:
        return state, (Refuse(Refusal.CORDONED, "its device is cordoned"),)
    if state.held >= policy.held_max:
        return state, (Refuse(Refusal.QUEUE_FULL, f"{state.held} requests wait for it already"),)
    return replace(state, held=state.held + 1, called=True), (Hold(),)


def _request_ended(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, in_flight=state.in_flight - 1, last_activity=now), ()


def _hold_ended(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, held=state.held - 1), ()


def _ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Ordered)
    wakes = event.depth is Depth.AWAKE
    return replace(state, ordered=event.depth, last_activity=now if wakes else state.last_activity), ()


def at_least_as_deep(depth: Depth, wanted: Depth) -> bool:
    """Whether a service at `depth` needs nothing more to be where a person wants it."""
    return depth is wanted or (wanted is Depth.SLEEPING and depth is Depth.OFFLOADED)


def _order_withdrawn(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, ordered=None), ()


def _pin_changed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, PinChanged)
    return replace(state, pinned=event.pinned), ()


def _turn_granted(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    transition = state.queued
    assert transition is not None
    assert state.incarnation is not None
    underway = Depth.WAKING if transition is Transition.WAKE else Depth.FALLING_ASLEEP
    from_depth = Depth.OFFLOADED if _repairing(state) else state.depth
    state = replace(
        state,
        depth=underway,
        since=now,
        from_depth=from_depth,
        queued=None,
        running=transition,
        epoch=state.epoch + 1,
        reason=_reason_for(state, transition),
    )
    start = StartTransition(
        transition, from_depth, state.incarnation or "", state.epoch, state.fresh, _repairing(state)
    )
    return state, (start,)


def _reason_for(state: ServiceState, transition: Transition) -> str:
    if _repairing(state):
        return f"repairing: {state.reason}"
    if state.ordered is not None:
        return f"ordered by a person: {state.ordered}"
    if transition is Transition.WAKE:
        return "requests ask for it" if state.called else "on its way to level 2, or pinned"
    return "idle"


def _transition_succeeded(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, TransitionSucceeded)
    if event.epoch != state.epoch or state.running is None:
        return state, ()
    reached = TARGET[state.running]
    state = replace(
        state,
        depth=reached,
        since=now,
        conditions=state.conditions - REPAIR,
        fresh=False,
        called=state.called and reached is not Depth.AWAKE,
        waking_since=None,
        running=None,
        epoch=state.epoch + 1,
        failures=0,
        retry_at=0.0,
        last_activity=now if state.ordered is Depth.AWAKE else state.last_activity,
    )
    released, effects = _release(state)
    return released, (EndTurn(), *effects)


def _release(state: ServiceState) -> Outcome:
    """Held requests go in flight in the same step in which the service becomes ready to serve."""
    if not state.serving or not state.held:
        return state, ()
    return replace(state, in_flight=state.in_flight + state.held, held=0), (ReleaseHeld(),)


def _transition_failed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, TransitionFailed)
    if event.epoch != state.epoch or state.running is None:
        return state, ()
    if event.unreachable:
        return _engine_left(state, Presence.ABSENT, now)
    if event.untouched:
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
            reason=event.reason,
        )
        released, effects = _release(state)
        return released, (EndTurn(), *effects)
    state, effects = _quarantine(replace(state, running=None), event.reason, now)
    return state, (EndTurn(), *effects)


def _quarantine(state: ServiceState, reason: str, now: float) -> Outcome:
    """Trust the engine no more; what it holds counts as offloaded."""
    failures = state.failures + 1
    conditions = REPAIR if failures >= FAILURES_UNTIL_FAILED else {Condition.QUARANTINED}
    state = replace(
        state,
        depth=Depth.OFFLOADED,
        since=now,
        conditions=state.conditions | conditions,
        epoch=state.epoch + 1,
        fresh=False,
        failures=failures,
        retry_at=now + back_off_seconds(failures),
        ordered=None,
        held=0,
        called=False,
        reason=reason,
    )
    # On the disk too: a restart of the router must not believe the engine's own word after this.
    return state, (RefuseHeld(reason), Remember(state.incarnation or "", Depth.OFFLOADED))


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
        state, conditions=conditions, drain_until=event.until, maintenance_until=event.maintenance_until
    )
    return state, ()


def _maintenance_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, MaintenanceOrdered)
    conditions = (state.conditions - PARKED) | {Condition.MAINTENANCE}
    return replace(state, conditions=conditions, maintenance_until=event.until), ()


def _maintenance_end_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return _end_maintenance(state)


def back_off_seconds(failures: int) -> float:
    """How long to wait after the n-th failure in a row: 5, 20, 80, 320, 1280, then 3600 seconds."""
    return min(BACK_OFF_MAX_SECONDS, BACK_OFF_FIRST_SECONDS * BACK_OFF_FACTOR ** min(failures - 1, 10))


def _observed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Observed)
    if event.presence is not Presence.UP:
        return _engine_left(state, event.presence, now)
    if event.incarnation is None:
        return state, ()
    if event.incarnation != state.incarnation:
        return _engine_appeared(state, event, now) if event.asleep is not None else (state, ())
    if event.epoch == state.epoch and event.asleep and state.depth is Depth.AWAKE:
        state = replace(state, depth=Depth.OFFLOADED, since=now, reason="something else put it to sleep")
        return state, (Remember(event.incarnation, Depth.OFFLOADED),)
    return state, ()


def _engine_left(state: ServiceState, presence: Presence, now: float) -> Outcome:
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
        conditions=state.conditions - REPAIR,
        fresh=False,
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
    depth = state.depth if state.depth in RESTING and not _repairing(state) else Depth.OFFLOADED
    return Record(incarnation=state.incarnation, depth=depth)


def _engine_appeared(state: ServiceState, event: Observed, now: float) -> Outcome:
    assert event.incarnation is not None
    effects: tuple[Effect, ...] = ()
    if state.running is not None:
        effects += (AbandonTransition(), EndTurn())
    if state.queued is not None:
        effects += (CancelTurn(),)
    record = _remembered(state)
    is_new = record.incarnation != event.incarnation if record else state.seen_booting
    depth, reason = believed_depth(record, event.incarnation, bool(event.asleep), is_new)
    state = replace(
        state,
        depth=depth,
        since=now,
        conditions=state.conditions - REPAIR,
        incarnation=event.incarnation,
        fresh=is_new and depth is Depth.AWAKE,
        called=state.called and depth is not Depth.AWAKE,
        waking_since=None,
        seen_booting=False,
        record=None,
        queued=None,
        running=None,
        epoch=state.epoch + 1,
        failures=0,
        retry_at=0.0,
        last_activity=now,
        reason=reason,
    )
    state, released = _release(state)
    return state, (*effects, Remember(event.incarnation, depth), *released)


def believed_depth(record: Record | None, incarnation: str, asleep: bool, is_new: bool) -> tuple[Depth, str]:
    """At which depth an engine is that has just been found, and why that is believed.

    What isn't certain counts as offloaded: the wake from there reloads the weights before anything is served,
    which is right from every depth.
    """
    if is_new and asleep:
        return Depth.OFFLOADED, "a new engine that something else put to sleep"
    if is_new:
        return Depth.AWAKE, "a new engine process is awake"
    if record is None:
        return Depth.OFFLOADED, "nothing is known about this engine's past"
    if record.open_step in (Step.SLEEP_LEVEL_1, Step.WAKE_ALL):
        # Level 1 keeps the weights, so the engine's own word is enough.
        return (
            Depth.SLEEPING if asleep else Depth.AWAKE
        ), f"{record.open_step} was interrupted; the engine says so"
    if record.open_step is not None:
        return Depth.OFFLOADED, f"{record.open_step} was interrupted"
    if asleep == (record.depth is not Depth.AWAKE):
        return record.depth, "as it was left"
    return Depth.OFFLOADED, f"recorded as {record.depth}, but the engine says otherwise"


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
    Observed: _observed,
    Distrusted: _distrusted,
    DrainOrdered: _drain_ordered,
    MaintenanceOrdered: _maintenance_ordered,
    MaintenanceEnded: _maintenance_end_ordered,
    Tick: _tick,
}
