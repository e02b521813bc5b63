"""All services together: who may change on which device, and who waits for that.

At most one transition at a time per device, a booting engine included: two engines of one GPU that allocate
and free memory at once can break each other's books. Turns are granted first come first served among those
that overlap, wakes before descents: nobody's request waits for somebody else's nap.

A wake that finds too little memory on its devices makes room: the neighbour that has been idle the longest
falls asleep, and then the wake is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from wake_router import lifecycle
from wake_router.lifecycle import (
    CancelTurn,
    Depth,
    Effect,
    EndTurn,
    Event,
    Evicted,
    NeedMemory,
    NothingToEvict,
    Policy,
    RequestTurn,
    ServiceState,
    Transition,
    TurnGranted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One service of the fleet."""

    policy: Policy
    devices: frozenset[str]
    state: ServiceState


@dataclass(frozen=True, slots=True)
class Turn:
    """A service's claim on its devices for one transition."""

    service: str
    transition: Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Every service, the turns that run, and those that wait in the order of asking."""

    members: Mapping[str, Member] = field(default_factory=dict)
    running: tuple[Turn, ...] = ()
    waiting: tuple[Turn, ...] = ()


Addressed = tuple[str, Effect]
"""An effect and the service that it is for."""


def advance(fleet: Fleet, service: str, event: Event, now: float) -> tuple[Fleet, tuple[Addressed, ...]]:
    """Apply an event to one service, grant what turns can be granted, and return the effects in order.

    Raises KeyError when there is no such service.
    """
    fleet, effects = _apply(fleet, service, event, now)
    while (turn := next(_grantable(fleet), None)) is not None:
        waiting = tuple(other for other in fleet.waiting if other is not turn)
        fleet = replace(fleet, running=(*fleet.running, turn), waiting=waiting)
        fleet, more = _apply(fleet, turn.service, TurnGranted(), now)
        effects += more
    return fleet, effects


def _apply(fleet: Fleet, service: str, event: Event, now: float) -> tuple[Fleet, tuple[Addressed, ...]]:
    member = fleet.members[service]
    state, effects = lifecycle.step(member.state, member.policy, event, now)
    if state is not member.state:
        changed = Member(policy=member.policy, devices=member.devices, state=state)
        members = {**fleet.members, service: changed}
        fleet = Fleet(members=members, running=fleet.running, waiting=fleet.waiting)
    addressed = tuple((service, effect) for effect in effects)
    for effect in effects:
        fleet = _book(fleet, service, effect)
    if NeedMemory() in effects:
        fleet, more = _make_room(fleet, service, now)
        addressed += more
    return fleet, addressed


def _make_room(fleet: Fleet, needy: str, now: float) -> tuple[Fleet, tuple[Addressed, ...]]:
    victim = longest_idle_neighbour(fleet, needy)
    if victim is None:
        return _apply(fleet, needy, NothingToEvict(), now)
    return _apply(fleet, victim, Evicted(needy), now)


def longest_idle_neighbour(fleet: Fleet, needy: str) -> str | None:
    """Which awake service on a device of `needy` nobody has asked for the longest; None: there is none."""
    devices = fleet.members[needy].devices
    idle = [
        (member.state.last_activity, name)
        for name, member in fleet.members.items()
        if name != needy and not devices.isdisjoint(member.devices) and _may_fall_asleep(member)
    ]
    return min(idle)[1] if idle else None


def _may_fall_asleep(member: Member) -> bool:
    state = member.state
    pinned = member.policy.pinned or state.pinned or state.ordered is Depth.AWAKE
    return state.serving and not state.in_flight and not state.held and not pinned


def _book(fleet: Fleet, service: str, effect: Effect) -> Fleet:
    match effect:
        case RequestTurn(transition):
            return replace(fleet, waiting=(*fleet.waiting, Turn(service, transition)))
        case CancelTurn():
            return replace(fleet, waiting=_without(fleet.waiting, service))
        case EndTurn():
            return replace(fleet, running=_without(fleet.running, service))
        case _:
            return fleet


def _without(turns: tuple[Turn, ...], service: str) -> tuple[Turn, ...]:
    return tuple(turn for turn in turns if turn.service != service)


def _grantable(fleet: Fleet) -> Iterator[Turn]:
    """Waiting turns whose devices are free and not claimed by an earlier one, wakes first."""
    if not fleet.waiting:
        return
    taken = _busy_devices(fleet)
    wakes_first = sorted(fleet.waiting, key=lambda turn: turn.transition is not Transition.WAKE)
    for turn in wakes_first:
        if turn.transition is Transition.WAKE and _waits_for_room(fleet, turn.service):
            continue
        devices = fleet.members[turn.service].devices
        if devices.isdisjoint(taken):
            yield turn
        taken |= devices


def _waits_for_room(fleet: Fleet, service: str) -> bool:
    """Whether a neighbour is about to fall asleep for it."""
    return any(member.state.evicted_for == service for member in fleet.members.values())


def _busy_devices(fleet: Fleet) -> set[str]:
    busy: set[str] = set()
    for turn in fleet.running:
        if turn.service in fleet.members:
            busy |= fleet.members[turn.service].devices
    for member in fleet.members.values():
        if member.state.depth is Depth.RESTARTING:
            busy |= member.devices
    return busy


def without_turns(fleet: Fleet, service: str) -> Fleet:
    """The fleet without the turns of a service whose engine is another one now."""
    running, waiting = _without(fleet.running, service), _without(fleet.waiting, service)
    return replace(fleet, running=running, waiting=waiting)


def with_members(fleet: Fleet, members: Mapping[str, Member]) -> Fleet:
    """The fleet after a reload of the registry; turns of services that are gone are dropped."""
    return Fleet(
        members=dict(members),
        running=tuple(turn for turn in fleet.running if turn.service in members),
        waiting=tuple(turn for turn in fleet.waiting if turn.service in members),
    )
