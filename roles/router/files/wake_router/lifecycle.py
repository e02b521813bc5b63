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
from typing import Final, NamedTuple


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
    UNPROVEN = "unproven"
    """Its weights aren't known to be good: its canary has to say so before it serves."""


class Transition(StrEnum):
    """What can be done to an engine; one at a time per device."""

    WAKE = "wake"
    SLEEP = "sleep"
    OFFLOAD = "offload"
    RESTART = "restart"


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
    ORDER_RESTART = "order_restart"


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
    Transition.RESTART: Depth.RESTARTING,
}
BACK_OFF_FIRST_SECONDS: Final = 5.0
BACK_OFF_FACTOR: Final = 4.0
BACK_OFF_MAX_SECONDS: Final = 3600.0
FAILURES_UNTIL_FAILED: Final = 4
"""After so many failures in a row a service is `failed`: still retried, at least hourly, and on order."""
MEMORY_RETRIES: Final = 3
"""How often a wake that failed for lack of device memory is tried again before it counts as failed. What it
has mapped until then stays mapped (vLLM 0.27.1 to 0.32.0), so more tries make it worse, not better."""


def steps_of(transition: Transition, from_depth: Depth) -> tuple[Step, ...]:
    """The engine calls of a transition, in their only right order (vLLM 0.27.1 to 0.32.0)."""
    if transition is Transition.SLEEP:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_1)
    if transition is Transition.OFFLOAD:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_2)
    if transition is Transition.RESTART:
        return (Step.ORDER_RESTART,)
    if from_depth is Depth.AWAKE:
        return (Step.CANARY,)
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
    reload_trusted: bool = True
    """Whether reloading weights is believed to bring this model back (`allow_level_2` isn't `never`)."""
    restartable: bool = False
    """Whether the engine's launcher takes the router's orders."""
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
    proven: bool = True
    """False: the engine itself isn't trusted, so its own word about its depth isn't believed either."""


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
    suspect: bool = False
    """It was quarantined and has not been proven since; a new process of it has to pass its canary first."""
    restart_ordered: bool = False
    restart_refused: bool = False
    """The launcher of this incarnation couldn't restart it, so other ways of repair are tried."""
    memory_retries: int = 0
    evicted_for: str | None = None
    """The service for which it falls asleep, because the device has too little memory for both."""
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
    engine. `out_of_memory`: its device has too little free memory.
    """

    epoch: int
    reason: str
    unreachable: bool = False
    untouched: bool = False
    out_of_memory: bool = False


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
class RestartOrdered:
    """A person wants a new process of the engine. It comes when nothing is in flight any more."""


@dataclass(frozen=True, slots=True)
class RestartWithdrawn:
    """The person who ordered a restart stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Another service needs the memory of a shared device; this one is idle and was so the longest."""

    beneficiary: str


@dataclass(frozen=True, slots=True)
class NothingToEvict:
    """No neighbour can give memory at the moment."""


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
    | RestartOrdered
    | RestartWithdrawn
    | Evicted
    | NothingToEvict
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
    unproven: bool = False


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
    proven: bool = True


@dataclass(frozen=True, slots=True)
class RememberParked:
    """Write to the disk that the service is parked until then (monotonic seconds); None: not any more."""

    until: float | None


@dataclass(frozen=True, slots=True)
class NeedMemory:
    """A wake found too little memory on its devices: ask the scheduler to free some."""


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
    | RememberParked
    | NeedMemory
)

Outcome = tuple[ServiceState, tuple[Effect, ...]]


def step(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    """Apply one event at time `now` (monotonic seconds), then decide what to do next."""
    handler = _HANDLERS[type(event)]
    state, effects = handler(state, policy, event, now)
    if state.conditions & PARKED:
        state, more = _pass_through_maintenance(state, now)
        effects += more
    state, more = _settle(_without_eviction(_without_reached_order(state), policy), policy, now)
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
    state, effects = _release(replace(state, conditions=state.conditions - PARKED))
    return state, (RememberParked(None), *effects)


def _without_reached_order(state: ServiceState) -> ServiceState:
    if state.ordered is None or _repairing(state) or not at_least_as_deep(state.depth, state.ordered):
        return state
    if state.ordered is Depth.AWAKE and Condition.UNPROVEN in state.conditions:
        return state
    return replace(state, ordered=None)


def _without_eviction(state: ServiceState, policy: Policy) -> ServiceState:
    """Nobody falls asleep for a neighbour who is wanted, held or trusted no more himself."""
    if state.evicted_for is None:
        return state
    wanted = state.in_flight or state.held or state.ordered is Depth.AWAKE or _pinned(state, policy)
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
    if wanted in (Transition.WAKE, Transition.RESTART) and waking_since is None:
        waking_since = now
    return replace(state, queued=wanted, waking_since=waking_since), effects


def wanted_transition(state: ServiceState, policy: Policy, now: float) -> Transition | None:
    """The transition that would bring the service where its clients, its people or its timers want it."""
    if state.restart_ordered and not state.in_flight and state.depth in RESTING | {Depth.STOPPED}:
        return Transition.RESTART
    if state.depth not in RESTING:
        return None
    unproven = Condition.UNPROVEN in state.conditions
    if state.depth is Depth.AWAKE and not _repairing(state) and not unproven:
        return _wanted_descent(state, policy, now)
    if _wake_wanted(state, policy, now):
        return Transition.RESTART if _restart_is_the_way(state, policy) else Transition.WAKE
    return None


def _restart_is_the_way(state: ServiceState, policy: Policy) -> bool:
    """An engine that isn't trusted gets a new process; so does one whose weights are gone and may not be
    reloaded.
    """
    if not policy.restartable or state.restart_refused or state.in_flight:
        return False
    return _repairing(state) or (state.depth is Depth.OFFLOADED and not policy.reload_trusted)


def _repairing(state: ServiceState) -> bool:
    return bool(state.conditions & REPAIR)


def _wake_wanted(state: ServiceState, policy: Policy, now: float) -> bool:
    if policy.cordoned and state.depth is not Depth.AWAKE:
        return False
    if _repairing(state) and state.in_flight:
        return False
    if state.ordered is Depth.AWAKE:
        return True
    if state.conditions & PARKED:
        return state.depth is Depth.SLEEPING and state.ordered is Depth.OFFLOADED
    if now < state.retry_at:
        return False
    if state.depth is Depth.AWAKE and not _repairing(state):
        return True  # unproven: it only has to pass its canary
    if _repairing(state) or state.called or state.held > 0 or _pinned(state, policy):
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
    if state.evicted_for is not None:
        return Transition.SLEEP
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
    if policy.cordoned and state.depth is not Depth.AWAKE and not state.conditions & PARKED:
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
    assert state.incarnation is not None or transition is Transition.RESTART
    descends = transition in (Transition.SLEEP, Transition.OFFLOAD)
    underway = Depth.FALLING_ASLEEP if descends else Depth.WAKING
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
        transition,
        from_depth,
        state.incarnation or "",
        state.epoch,
        state.fresh,
        _repairing(state),
        Condition.UNPROVEN in state.conditions,
    )
    return state, (start,)


def _reason_for(state: ServiceState, transition: Transition) -> str:
    if _repairing(state):
        return f"repairing: {state.reason}"
    if transition is Transition.RESTART:
        return "ordered by a person: restart" if state.restart_ordered else "its weights may not be reloaded"
    if state.ordered is not None:
        return f"ordered by a person: {state.ordered}"
    if state.evicted_for is not None:
        return f"'{state.evicted_for}' needs the memory of its device"
    if Condition.UNPROVEN in state.conditions:
        return f"its canary has to prove it: {state.reason}"
    if transition is Transition.WAKE:
        return "requests ask for it" if state.called else "on its way to level 2, or pinned"
    return "idle"


def _transition_succeeded(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, TransitionSucceeded)
    if event.epoch != state.epoch or state.running is None:
        return state, ()
    if state.running is Transition.RESTART:
        return _engine_left(state, Presence.BOOTING, now)
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
        failures = state.failures + 1
        state = replace(state, failures=failures, retry_at=now + back_off_seconds(failures))
        return _engine_left(state, Presence.ABSENT, now)
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
        released, effects = _release(state)
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
        called=True,
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
        state, conditions=conditions, drain_until=event.until, maintenance_until=event.maintenance_until
    )
    return state, (RememberParked(event.maintenance_until),)


def _maintenance_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, MaintenanceOrdered)
    conditions = (state.conditions - PARKED) | {Condition.MAINTENANCE}
    return replace(state, conditions=conditions, maintenance_until=event.until), (
        RememberParked(event.until),
    )


def _maintenance_end_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return _end_maintenance(state)


def _restart_ordered(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, restart_ordered=True), ()


def _restart_withdrawn(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    return replace(state, restart_ordered=False), ()


def back_off_seconds(failures: int) -> float:
    """How long to wait after the n-th failure in a row: 5, 20, 80, 320, 1280, then 3600 seconds."""
    return min(BACK_OFF_MAX_SECONDS, BACK_OFF_FIRST_SECONDS * BACK_OFF_FACTOR ** min(failures - 1, 10))


def _observed(state: ServiceState, policy: Policy, event: Event, now: float) -> Outcome:
    assert isinstance(event, Observed)
    if event.presence is not Presence.UP:
        return _engine_left(state, event.presence, now)
    if event.incarnation is None:
        return state, ()
    if state.incarnation is None and event.epoch != state.epoch:
        return state, ()  # a look that began before the engine left
    if event.incarnation != state.incarnation:
        return _engine_appeared(state, policy, event, now) if event.asleep is not None else (state, ())
    if event.epoch == state.epoch and event.asleep and state.depth is Depth.AWAKE:
        belief = _uncertain("something else put it to sleep", True, policy.reload_trusted)
        conditions = state.conditions if belief.proven else state.conditions | {Condition.UNPROVEN}
        state = replace(state, depth=belief.depth, since=now, conditions=conditions, reason=belief.reason)
        return state, (Remember(event.incarnation, Depth.OFFLOADED, proven=False),)
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
    known = state.depth in RESTING and not _repairing(state) and Condition.UNPROVEN not in state.conditions
    depth = state.depth if known else Depth.OFFLOADED
    return Record(incarnation=state.incarnation, depth=depth, proven=known)


def _engine_appeared(state: ServiceState, policy: Policy, event: Observed, now: float) -> Outcome:
    assert event.incarnation is not None
    effects: tuple[Effect, ...] = ()
    if state.running is not None:
        effects += (AbandonTransition(), EndTurn())
    if state.queued is not None:
        effects += (CancelTurn(),)
    record = _remembered(state)
    is_new = record.incarnation != event.incarnation if record else state.seen_booting
    belief = believed_depth(record, event.incarnation, bool(event.asleep), is_new, policy.reload_trusted)
    depth = belief.depth
    if is_new and depth is Depth.AWAKE and (state.suspect or _repairing(state)):
        belief = Belief(depth, "a new engine process after a failure", proven=False)
    suspicion: frozenset[Condition] = frozenset() if belief.proven else frozenset({Condition.UNPROVEN})
    state = replace(
        state,
        depth=depth,
        since=now,
        conditions=(state.conditions - REPAIR - {Condition.UNPROVEN}) | suspicion,
        incarnation=event.incarnation,
        fresh=is_new and depth is Depth.AWAKE,
        called=state.called and not (depth is Depth.AWAKE and belief.proven),
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
    state, released = _release(state)
    return state, (*effects, Remember(event.incarnation, depth, belief.proven), *released)


class Belief(NamedTuple):
    """At which depth an engine is believed to be, why, and whether its canary isn't needed for that."""

    depth: Depth
    reason: str
    proven: bool = True


def believed_depth(
    record: Record | None, incarnation: str, asleep: bool, is_new: bool, reload_trusted: bool = True
) -> Belief:
    """At which depth an engine is that has just been found.

    What isn't certain counts as offloaded: the wake from there reloads the weights before anything is served,
    which is right from every depth. Only where reloading isn't trusted (`allow_level_2: never`), the canary
    decides instead.
    """
    if is_new and asleep:
        return _uncertain("a new engine that something else put to sleep", asleep, reload_trusted)
    if is_new:
        return Belief(Depth.AWAKE, "a new engine process is awake")
    if record is None:
        return _uncertain("nothing is known about this engine's past", asleep, reload_trusted)
    if not record.proven:
        return _uncertain("it wasn't trusted when the router last saw it", asleep, reload_trusted)
    if record.open_step in (Step.SLEEP_LEVEL_1, Step.WAKE_ALL):
        # Level 1 keeps the weights, so the engine's own word is enough.
        depth = Depth.SLEEPING if asleep else Depth.AWAKE
        return Belief(depth, f"{record.open_step} was interrupted; the engine says so")
    if record.open_step is not None:
        return _uncertain(f"{record.open_step} was interrupted", asleep, reload_trusted)
    if asleep == (record.depth is not Depth.AWAKE):
        return Belief(record.depth, "as it was left")
    return _uncertain(f"recorded as {record.depth}, but the engine says otherwise", asleep, reload_trusted)


def _uncertain(reason: str, asleep: bool, reload_trusted: bool) -> Belief:
    """What to believe when nothing is certain.

    With `allow_level_2: never` a reload may itself break the model, and this router never discards its
    weights: most probably they are whole. But somebody else may have discarded them, and the engine's own
    gauge of the level lies after a second /sleep (vLLM 0.27.1 to 0.32.0). So it is woken as from level 1, and
    serves only if its canary says so; where there is nothing to compare with, a new process is the one thing
    that is certain (`transitions` fails the proof then, and the launcher restarts it).
    """
    if reload_trusted:
        return Belief(Depth.OFFLOADED, reason)
    depth = Depth.SLEEPING if asleep else Depth.AWAKE
    return Belief(depth, f"{reason}; its weights may not be reloaded, so its canary decides", proven=False)


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
    RestartOrdered: _restart_ordered,
    RestartWithdrawn: _restart_withdrawn,
    Evicted: _evicted,
    NothingToEvict: _nothing_to_evict,
    Tick: _tick,
}
