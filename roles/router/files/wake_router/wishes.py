"""Where a service should go next, by its clients, its people and its timers. Pure."""

from __future__ import annotations

from wake_router.service_state import (
    PARKED,
    REPAIR,
    RESTING,
    Condition,
    Depth,
    Policy,
    ServiceState,
    Transition,
)


def wanted_transition(state: ServiceState, policy: Policy, now: float) -> Transition | None:
    """The transition that would bring the service where its clients, its people or its timers want it."""
    if state.restart_ordered and not state.in_flight and state.depth in RESTING | {Depth.STOPPED}:
        return Transition.RESTART
    if state.depth not in RESTING:
        return None
    unproven = Condition.UNPROVEN in state.conditions
    if state.depth is Depth.AWAKE and not repairing(state) and not unproven:
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
    return repairing(state) or (state.depth is Depth.OFFLOADED and not policy.reload_trusted)


def repairing(state: ServiceState) -> bool:
    """Whether the engine isn't trusted and is to be repaired."""
    return bool(state.conditions & REPAIR)


def _wake_wanted(state: ServiceState, policy: Policy, now: float) -> bool:
    if policy.cordoned and state.depth is not Depth.AWAKE:
        return False
    if repairing(state) and state.in_flight:
        return False
    if state.ordered is Depth.AWAKE:
        return True
    if state.conditions & PARKED:
        return state.depth is Depth.SLEEPING and state.ordered is Depth.OFFLOADED
    if now < state.retry_at:
        return False
    if state.depth is Depth.AWAKE and not repairing(state):
        return True  # unproven: it only has to pass its canary
    if repairing(state) or state.called or state.held > 0 or pinned(state, policy):
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
    if policy.idle_sleep_seconds and idle >= policy.idle_sleep_seconds and not pinned(state, policy):
        return Transition.SLEEP if now >= state.retry_at else None
    return None


def _offload_due(state: ServiceState, policy: Policy, now: float) -> bool:
    if state.ordered is Depth.OFFLOADED:
        return True
    if not policy.level_2_allowed or not policy.idle_offload_seconds or pinned(state, policy):
        return False
    return now - state.last_activity >= policy.idle_offload_seconds and now >= state.retry_at


def pinned(state: ServiceState, policy: Policy) -> bool:
    """Whether the registry or a person keeps it awake."""
    return policy.pinned or state.pinned


def needs_wake(depth: Depth, wanted: Depth) -> bool:
    """Whether it takes a wake to come from `depth` to `wanted`. An engine that starts comes up by itself."""
    if wanted is Depth.AWAKE:
        return depth in (Depth.SLEEPING, Depth.OFFLOADED, Depth.FALLING_ASLEEP)
    return wanted is Depth.OFFLOADED and depth is Depth.SLEEPING


def at_least_as_deep(depth: Depth, wanted: Depth) -> bool:
    """Whether a service at `depth` needs nothing more to be where a person wants it."""
    return depth is wanted or (wanted is Depth.SLEEPING and depth is Depth.OFFLOADED)
