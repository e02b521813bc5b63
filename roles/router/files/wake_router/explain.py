"""Why a service is as it is, and what will happen next, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wake_router.askers import Asking
from wake_router.clock import spoken
from wake_router.lifecycle import (
    PARKED,
    REPAIR,
    Condition,
    Depth,
    Policy,
    ServiceState,
    Transition,
)
from wake_router.scheduler import Fleet, Member


def explain(
    fleet: Fleet,
    name: str,
    now: float,
    level_2_reason: str,
    asking: Asking,
    cordoned_devices: Sequence[str] = (),
) -> list[str]:
    """Sentences about a service of the fleet; raises KeyError when there is no such service."""
    member = fleet.members[name]
    state = member.state
    sentences = [f"It is {state.depth.words} since {spoken(now - state.since)}: {state.reason}."]
    sentences += asking.sentences(now)
    sentences += _conditions(name, state, now)
    if state.in_flight:
        under_way = "1 request is" if state.in_flight == 1 else f"{state.in_flight} requests are"
        sentences.append(f"{under_way} in flight; it can't fall asleep before that ends.")
    if state.held:
        sentences.append(
            "1 request waits for it." if state.held == 1 else f"{state.held} requests wait for it."
        )
    if state.queued is not None:
        sentences.append(_queue(fleet, name, member, state.queued))
    sentences += [_cordon(state, device) for device in cordoned_devices]
    sentences += _future(state, member.policy, now)
    sentences.append(f"Whether a timer may discard its weights (level 2): {level_2_reason}.")
    return sentences


def _conditions(name: str, state: ServiceState, now: float) -> Iterator[str]:
    if state.conditions & PARKED:
        what = "being drained" if Condition.DRAINING in state.conditions else "in maintenance"
        yield (
            f"It is {what}, ordered by {state.parked_by}: requests wait until it is proven "
            f"(vllmctl prove {name}), for at most {spoken(state.maintenance_until - now)}."
        )
    if Condition.UNPROVEN in state.conditions:
        yield "It isn't known whether its weights are good: its canary is asked before it serves."
    if state.evicted_for is not None:
        yield f"It falls asleep because '{state.evicted_for}' needs the memory of its device."
    if state.memory_retries:
        yield f"Its wake has found too little device memory {_times(state.memory_retries)}."
    if state.conditions & REPAIR:
        left = max(0.0, state.retry_at - now)
        yield f"It has failed {_times(state.failures)}; the next repair is in {spoken(left)}."


def _queue(fleet: Fleet, name: str, member: Member, queued: Transition) -> str:
    leaving = [other for other, each in fleet.members.items() if each.state.evicted_for == name]
    busy = [
        turn.service
        for turn in fleet.running
        if turn.service != name and not fleet.members[turn.service].devices.isdisjoint(member.devices)
    ]
    booting = [
        other
        for other, each in fleet.members.items()
        if each.state.depth is Depth.RESTARTING and not each.devices.isdisjoint(member.devices)
    ]
    causes = ", ".join(dict.fromkeys([*leaving, *busy, *booting]))
    behind = f" behind {causes}" if causes else ""
    return f"Its {queued} waits for its turn on {', '.join(sorted(member.devices))}{behind}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _cordon(state: ServiceState, device: str) -> str:
    what = "once it sleeps, it isn't woken again" if state.serving else "it isn't woken"
    return f"Its device {device} is cordoned: {what} (vllmctl uncordon {device})."


def _future(state: ServiceState, policy: Policy, now: float) -> Iterator[str]:
    if policy.pinned or state.pinned:
        yield "It is pinned: no timer puts it to sleep."
        return
    if state.conditions & PARKED or state.held:
        return
    if state.in_flight:
        if policy.idle_sleep_seconds:
            yield f"It falls asleep when nobody has asked for {spoken(policy.idle_sleep_seconds)} after that."
        return
    idle = now - state.last_activity
    if state.depth is Depth.AWAKE and policy.idle_sleep_seconds:
        yield f"If nobody asks, it falls asleep in {spoken(policy.idle_sleep_seconds - idle)}."
    may_offload = policy.level_2_allowed and policy.idle_offload_seconds
    if state.depth is Depth.AWAKE and not policy.idle_sleep_seconds and not may_offload:
        yield "No timer puts it to sleep."
    # From sleep, the way to level 2 is a wake.
    reachable = state.depth is Depth.AWAKE or (state.depth is Depth.SLEEPING and not policy.cordoned)
    if reachable and may_offload:
        yield f"If nobody asks, it is offloaded in {spoken(policy.idle_offload_seconds - idle)}."
