"""Carries out what `lifecycle` and `scheduler` decide, and feeds the results back to them as events.

Transitions run in tasks that belong to the executor: no client that goes away and no admin call that times
out ever cancels one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import aiohttp

from wake_router import from_settings, lifecycle, scheduler, transitions, waits
from wake_router.askers import Asker, Wake
from wake_router.clock import Clock
from wake_router.engine import Engine
from wake_router.events import Events
from wake_router.explain import explain
from wake_router.guardian import Guardian
from wake_router.intent_store import IntentStore
from wake_router.leases import Handle, Held, LastWake, Lease, RefusedError
from wake_router.lifecycle import (
    AbandonTransition,
    CutInFlight,
    Depth,
    Effect,
    Event,
    Forward,
    Hold,
    HoldEnded,
    NeedMemory,
    Observed,
    Presence,
    Record,
    Refusal,
    Refuse,
    RefuseHeld,
    ReleaseHeld,
    Remember,
    RememberParked,
    RequestArrived,
    RequestEnded,
    ServiceState,
    StartTransition,
    Tick,
    Transition,
    TransitionFailed,
    TransitionSucceeded,
)
from wake_router.memory import MemoryStore, level_2_verdict
from wake_router.metrics import Metrics
from wake_router.notebook import ServiceNotebook
from wake_router.registry import Registry, Service
from wake_router.scheduler import Fleet, Member
from wake_router.settings import MIB, Settings
from wake_router.sightings import moved
from wake_router.standing_orders import Parking, StandingOrders

__all__ = ["Executor", "Handle", "Held", "Lease", "RefusedError"]

TICK_SECONDS: Final = 0.2


class Executor:
    """Owns every service's state; the only one who may put an engine to sleep or wake it."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        clock: Clock,
        events: Events,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._session = session
        self._clock = clock
        self._intents = IntentStore(settings.state / "intents")
        self._standing = StandingOrders(settings.state / "orders", clock.wall)
        self._memories = MemoryStore(settings.state / "memory")
        self._intervals = from_settings.intervals(settings)
        self._events = events
        self._metrics = metrics
        self._fleet = Fleet()
        self._handles: dict[str, Handle] = {}
        self._names: dict[str, Service] = {}
        self._cordoned = self._standing.cordoned()
        self._device_names: Mapping[str, str] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._watchers: list[tuple[str, Callable[[ServiceState], bool], asyncio.Future[None]]] = []
        self._stopping = False
        self.instance = ""
        self.waits = from_settings.waits_of(settings)

    # ---- services

    def resolve(self, name: str) -> Service | None:
        """The service that a client means by a model name; None when there is none."""
        return self._names.get(name.casefold())

    def services(self) -> Iterator[tuple[Service, ServiceState]]:
        """Every service with its state, in the registry's order."""
        for name, handle in self._handles.items():
            yield handle.service, self._fleet.members[name].state

    def state(self, name: str) -> ServiceState:
        """A service's state; raises KeyError when there is no such service."""
        return self._fleet.members[name].state

    def handle(self, name: str) -> Handle:
        """What belongs to a service beside its state; raises KeyError for an unknown one."""
        return self._handles[name]

    def last_wake_seconds(self, name: str) -> float | None:
        """How long the last successful wake took; None before the first."""
        return self._handles[name].last_wake_seconds

    def pinned(self, name: str) -> bool:
        """Whether a service is kept awake, by the registry or by a person."""
        member = self._fleet.members[name]
        return member.policy.pinned or member.state.pinned

    def load(self, registry: Registry) -> list[str]:
        """Take over a registry, keeping what hasn't changed; returns sentences about what has."""
        now = self._clock.monotonic()
        changes: list[str] = []
        wanted = {service.name: service for service in registry.services}
        for name in [name for name in self._handles if name not in wanted]:
            self._forget(name)
            changes.append(f"service {name}: removed")
        members: dict[str, Member] = {}
        for name, service in wanted.items():
            members[name], change = self._adopt(service, now)
            changes += [f"service {name}: {change}"] if change else []
        self._handles = {name: self._handles[name] for name in wanted}
        self._fleet = scheduler.with_members(self._fleet, members)
        self._names = registry.by_name()
        self.instance = registry.instance
        for name in wanted:
            self._dispatch(name, Tick())
        if changes:
            self._events.emit("registry", instance=registry.instance, changes=changes)
        return changes

    def _adopt(self, service: Service, now: float) -> tuple[Member, str]:
        handle = self._handles.get(service.name)
        devices = frozenset(service.devices)
        if handle is None:
            handle = self._handles[service.name] = self._new_handle(service)
            state = handle.notebook.first_state(now)
            return Member(policy=self._policy(handle), devices=devices, state=state), "added"
        before, handle.service = handle.service, service
        self._forget_other_definitions(handle)
        policy = self._policy(handle)
        state = self._fleet.members[service.name].state
        if (before.base_url, before.launcher_url) != (service.base_url, service.launcher_url):
            self._drop_tasks(handle)
            handle.engine = self._engine(service)
            handle.observer = self._watch(service, handle)
            state = moved(state, now)
            self._fleet = scheduler.without_turns(self._fleet, service.name)
            return Member(policy=policy, devices=devices, state=state), "moved to another address"
        return Member(policy=policy, devices=devices, state=state), "changed" if before != service else ""

    def _new_handle(self, service: Service) -> Handle:
        notebook = ServiceNotebook(service.name, self._intents, self._standing, self._memories, self._events)
        notebook.when_learned = lambda: self._refresh_policy(service.name)
        handle = Handle(service, self._engine(service), notebook)
        self._forget_other_definitions(handle)
        handle.observer = self._watch(service, handle)
        return handle

    def _forget_other_definitions(self, handle: Handle) -> None:
        memory = handle.notebook.memory
        known = memory.for_definition(f"{handle.service.definition} {handle.service.model}")
        if known is not memory:
            handle.notebook.learn_soon(known)

    def _refresh_policy(self, name: str) -> None:
        member, handle = self._fleet.members.get(name), self._handles.get(name)
        if member is not None and handle is not None:
            changed = replace(member, policy=self._policy(handle))
            self._fleet = replace(self._fleet, members={**self._fleet.members, name: changed})

    def _policy(self, handle: Handle) -> lifecycle.Policy:
        return from_settings.policy(self._settings, handle.service, handle.notebook.memory, self._cordoned)

    def launcher_token(self, service: Service) -> str | None:
        """With which the service's launcher takes orders; None: there is no launcher, or no token for it."""
        return from_settings.launcher_token(self._settings, service)

    def _engine(self, service: Service) -> Engine:
        timeouts = from_settings.timeouts(self._settings)
        return Engine(self._session, service.base_url, service.launcher_url, timeouts, self._clock)

    def _forget(self, name: str) -> None:
        handle = self._handles.pop(name)
        self._drop_tasks(handle)
        handle.notebook.park_soon(None)
        self._refuse_all(handle, self._fleet.members[name].state, "the service has been removed")

    def _drop_tasks(self, handle: Handle) -> None:
        for task in (handle.observer, handle.transition):
            if task is not None:
                task.cancel()
        handle.observer = handle.transition = None

    # ---- start and stop

    def start(self) -> None:
        """Begin to let time pass."""
        self._ticker = asyncio.create_task(self._tick_for_ever())

    def begin_stop(self) -> None:
        """Refuse what waits and what still comes; what is in flight goes on."""
        self._stopping = True
        for name, handle in self._handles.items():
            waiting = len(handle.held)
            self._refuse_all(handle, self.state(name), "the router stops", stopping=True)
            for _ in range(waiting):
                self._dispatch(name, HoldEnded())

    async def finish_stop(self, seconds: float) -> None:
        """Give transitions and requests some time to end; then cut requests, whose clients see that.

        The intents of transitions that don't end in time are on the disk.
        """
        end = self._clock.monotonic() + seconds
        running: list[asyncio.Task[Any]] = [
            handle.transition for handle in self._handles.values() if handle.transition is not None
        ]
        if running:
            await asyncio.wait(running, timeout=seconds)
        for name in list(self._handles):
            with contextlib.suppress(TimeoutError):
                left = max(0.0, end - self._clock.monotonic())
                await self.until(name, lambda state: not state.in_flight, left)
        for handle in self._handles.values():
            for lease in list(handle.leases):
                lease.when_cut("the router stops")
        if self._ticker is not None:
            self._ticker.cancel()
        for handle in self._handles.values():
            self._drop_tasks(handle)
            await handle.notebook.finish()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for name in list(self._handles):
                self._dispatch(name, Tick())

    # ---- requests

    async def admit(
        self,
        name: str,
        asker: Asker,
        wished_wait_seconds: float | None = None,
        size: int = 0,
        waited_seconds: float = 0.0,
    ) -> Lease:
        """Wait until a request may be forwarded; `size` is its body's in bytes, `waited_seconds` count
        already.

        Raises RefusedError, or KeyError for an unknown service.
        """
        handle = self._handles[name]
        if self._stopping:
            raise RefusedError(self.state(name), "the router stops", stopping=True)
        arrived = self._clock.monotonic() - waited_seconds
        before = self.state(name)
        handle.asking.note(asker, arrived)
        if not before.serving:
            self._require_room(name, handle, size)
            if not before.called:
                handle.asking.caller = asker
        for effect in self._dispatch(name, RequestArrived()):
            match effect:
                case Forward():
                    return Lease(self, name, handle, self.state(name).epoch, Held(waited_seconds))
                case Refuse(kind, reason):
                    raise RefusedError(self.state(name), reason, kind)
                case _:
                    continue
        handle.held_bytes += size
        try:
            epoch = await self._wait_held(name, handle, arrived, wished_wait_seconds)
        finally:
            handle.held_bytes -= size
        held = handle.last_wake.held(arrived, self._clock.monotonic())
        self._metrics.held_seconds.labels(name).observe(held.seconds)
        return Lease(self, name, handle, epoch, held)

    def _require_room(self, name: str, handle: Handle, size: int) -> None:
        """Refuse a body for which there is no room among those that wait; raises RefusedError."""
        here = handle.held_bytes + size
        everywhere = sum(each.held_bytes for each in self._handles.values()) + size
        if here > self._settings.held_max_bytes_per_service or everywhere > self._settings.held_max_bytes:
            reason = f"the bodies that wait fill {everywhere // MIB} MiB already"
            raise RefusedError(self.state(name), reason, Refusal.QUEUE_FULL)

    async def _wait_held(self, name: str, handle: Handle, arrived: float, wished: float | None) -> int:
        """Wait for the release; returns the service's epoch at that moment."""
        ready = handle.held[-1]
        try:
            while not ready.done():
                left = arrived + self._hold_seconds(name, wished) - self._clock.monotonic()
                if left <= 0:
                    state = self.state(name)
                    self._stop_waiting(name, handle, ready)
                    raise RefusedError(state, "the hold deadline has passed")
                await asyncio.wait({ready}, timeout=left)
            return ready.result()
        except asyncio.CancelledError:
            self._stop_waiting(name, handle, ready)
            raise

    def _hold_seconds(self, name: str, wished: float | None) -> float:
        depth, samples = waits.depth_to_wake_from(self.state(name)), self._samples(name)
        return waits.hold_seconds(depth, self.waits, samples, wished)

    def _samples(self, name: str) -> waits.Samples:
        return self._handles[name].notebook.memory.wake_seconds

    def estimated_wake_seconds(self, name: str) -> float:
        """How long until a service serves again, by what was measured; raises KeyError for an unknown one."""
        state, samples = self.state(name), self._samples(name)
        now = self._clock.monotonic()
        elapsed = 0.0 if state.waking_since is None else now - state.waking_since
        until_repair = max(0.0, state.retry_at - now) if state.conditions & lifecycle.REPAIR else 0.0
        depth = waits.depth_to_wake_from(state)
        return until_repair + waits.estimated_wake_seconds(depth, self.waits, samples, elapsed)

    def _stop_waiting(self, name: str, handle: Handle, ready: asyncio.Future[int]) -> None:
        """A held request leaves; if it had just been released, it counts as in flight and ends."""
        if not ready.done():
            handle.held.remove(ready)
            self._dispatch(name, HoldEnded())
        elif ready.exception() is None:
            self.end_request(name, handle)

    def end_request(self, name: str, handle: Handle) -> None:
        """The last byte of a request's response is out."""
        if self._handles.get(name) is handle:
            self._dispatch(name, RequestEnded())

    def report_unreachable(self, lease: Lease) -> None:
        """A request found nobody at its engine's address: don't wait for the next look."""
        if lease.service in self._handles and self.state(lease.service).epoch == lease.epoch:
            self._dispatch(lease.service, Observed(lease.epoch, Presence.ABSENT))

    async def is_alive(self, name: str) -> bool:
        """Whether the engine itself says now that it is there, awake and the same as before."""
        handle = self._handles.get(name)
        look = await handle.engine.look() if handle is not None else None
        return look is not None and look.asleep is False and look.incarnation == self.state(name).incarnation

    # ---- for people

    def name_devices(self, names: Mapping[str, str]) -> None:
        """What people call devices, by the keys that the registry has for them."""
        self._device_names = names

    def devices(self) -> dict[str, str]:
        """The devices that services run on: what people call them, by key."""
        keys = sorted({key for handle in self._handles.values() for key in handle.service.devices})
        return {key: self._device_names.get(key, key) for key in keys}

    def cordon(self, device: str, cordoned: bool) -> None:
        """Stop or allow wakes on a device (its key), over restarts too.

        Raises KeyError when no service runs on it, and DurableWriteError when the order holds now, but isn't
        on the disk.
        """
        if not any(device in handle.service.devices for handle in self._handles.values()):
            raise KeyError(device)
        self._cordoned = self._cordoned | {device} if cordoned else self._cordoned - {device}
        for name in self._handles:
            self._refresh_policy(name)
            self._dispatch(name, Tick())
        self._events.emit("device", device=self._device_names.get(device, device), cordoned=cordoned)
        if cordoned:
            self._standing.cordon(device)
        else:
            self._standing.uncordon(device)

    @property
    def stopping(self) -> bool:
        """Whether no new work is taken any more."""
        return self._stopping

    @property
    def cordoned(self) -> frozenset[str]:
        """Devices on which nothing is woken."""
        return self._cordoned

    def cordoned_devices(self, name: str) -> list[str]:
        """What those of a service's devices are called that are cordoned; raises KeyError for an unknown
        service.
        """
        cordoned = self._cordoned.intersection(self._handles[name].service.devices)
        return sorted(self._device_names.get(key, key) for key in cordoned)

    def explain(self, name: str) -> list[str]:
        """Why a service is as it is, in sentences; raises KeyError for an unknown service."""
        handle = self._handles[name]
        reason = level_2_verdict(handle.service, handle.notebook.memory)[1]
        cordoned = self.cordoned_devices(name)
        return explain(self._fleet, name, self._clock.monotonic(), reason, handle.asking, cordoned)

    def dispatch(self, name: str, event: Event) -> None:
        """Apply an event to a service; raises KeyError for an unknown one."""
        if name not in self._handles:
            raise KeyError(name)
        self._dispatch(name, event)

    async def until(self, name: str, holds: Callable[[ServiceState], bool], timeout_seconds: float) -> None:
        """Wait for a state; raises TimeoutError, or KeyError for an unknown service."""
        if holds(self.state(name)):
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watcher = (name, holds, reached)
        self._watchers.append(watcher)
        try:
            async with asyncio.timeout(timeout_seconds):
                await reached
        finally:
            self._watchers.remove(watcher)

    # ---- the machine

    def _dispatch(self, name: str, event: Event) -> list[Effect]:
        """Apply an event, carry out the effects; returns those for the service itself."""
        if name not in self._fleet.members:
            return []
        before = self._fleet.members
        self._fleet, effects = scheduler.advance(self._fleet, name, event, self._clock.monotonic())
        for service, effect in effects:
            self._perform(service, effect)
        if self._fleet.members is not before:
            for service in {name, *(service for service, _ in effects)}:
                self._notice(service, before[service].state)
        return [effect for service, effect in effects if service == name]

    def _notice(self, name: str, before: ServiceState) -> None:
        state = self._fleet.members[name].state
        if (state.depth, state.conditions) != (before.depth, before.conditions):
            self._metrics.depth_seconds.labels(name, before.depth.value).inc(
                max(0.0, state.since - before.since)
            )
            self._events.emit(
                "depth",
                service=name,
                depth=state.depth.value,
                before=before.depth.value,
                conditions=sorted(state.conditions),
                reason=state.reason,
                incarnation=state.incarnation,
                in_flight=state.in_flight,
                held=state.held,
            )
        if before.waking_since is not None and state.waking_since is None:
            self._learn_wake_time(name, before, self._clock.monotonic() - before.waking_since)
        for watched, holds, reached in self._watchers:
            if watched == name and not reached.done() and holds(state):
                reached.set_result(None)

    def _learn_wake_time(self, name: str, before: ServiceState, seconds: float) -> None:
        if self.state(name).depth is Depth.AWAKE and not before.conditions:
            notebook = self._handles[name].notebook
            depth = waits.depth_to_wake_from(before)
            notebook.learn_soon(notebook.memory.with_sample(depth.value, seconds))

    def _perform(self, name: str, effect: Effect) -> None:
        handle = self._handles[name]
        match effect:
            case Hold():
                handle.held.append(asyncio.get_running_loop().create_future())
            case ReleaseHeld():
                epoch = self.state(name).epoch
                while handle.held:
                    handle.held.popleft().set_result(epoch)
            case RefuseHeld(reason):
                self._refuse_all(handle, self.state(name), reason)
            case StartTransition():
                self._begin(name, handle, effect)
            case AbandonTransition():
                self._abandon(name, handle)
            case Remember(incarnation, depth, proven):
                handle.notebook.intend_soon(Record(incarnation=incarnation, depth=depth, proven=proven))
            case RememberParked(until):
                handle.notebook.park_soon(None if until is None else self._parking(name, until))
            case NeedMemory():
                self._events.emit("memory", service=name, reason=self.state(name).reason)
            case CutInFlight(reason):
                for lease in list(handle.leases):
                    lease.when_cut(reason)
            case _:
                pass

    def _parking(self, name: str, until: float) -> Parking:
        return Parking(max(0.0, until - self._clock.monotonic()), self.state(name).parked_by)

    def _refuse_all(
        self, handle: Handle, state: ServiceState, reason: str, *, stopping: bool = False
    ) -> None:
        while handle.held:
            handle.held.popleft().set_exception(RefusedError(state, reason, stopping=stopping))

    # ---- transitions

    def _begin(self, name: str, handle: Handle, start: StartTransition) -> None:
        now, state = self._clock.monotonic(), self.state(name)
        handle.transition_began, handle.transition_start = now, start
        if start.transition is Transition.WAKE:
            ordered = state.ordered is Depth.AWAKE or (state.pinned and not state.called)
            handle.asking.wake_begins(
                start.from_depth, state.reason, now, called=state.called, ordered=ordered
            )
        task = asyncio.create_task(self._carry_out(name, handle, start))
        task.add_done_callback(lambda done: self._report_crash(name, start, done))
        handle.transition = task

    async def _carry_out(self, name: str, handle: Handle, start: StartTransition) -> None:
        assignment = transitions.Assignment(
            start,
            handle.service,
            handle.engine,
            handle.notebook,
            self._settings.sleep_timeout_seconds,
            real_level_2=handle.offloaded_incarnation == start.incarnation,
            launcher_token=self.launcher_token(handle.service),
            clock=self._clock,
        )
        report = await transitions.carry_out(assignment)
        failure = report.failure
        if failure is None:
            handle.offloaded_incarnation = (
                start.incarnation if start.transition is Transition.OFFLOAD else None
            )
        self._account(name, handle, start, report)
        handle.transition = None
        self._dispatch(name, failure or TransitionSucceeded(start.epoch))

    def _abandon(self, name: str, handle: Handle) -> None:
        """The engine left in the middle of it: what a restart wanted, and the end of anything else."""
        if handle.transition is None or handle.transition_start is None:
            return
        handle.transition.cancel()
        handle.transition = None
        start = handle.transition_start
        left = TransitionFailed(start.epoch, "the engine ended in the middle of it", unreachable=True)
        failure = None if start.transition is Transition.RESTART else left
        self._account(name, handle, start, transitions.Report(failure))

    def _report_crash(self, name: str, start: StartTransition, done: asyncio.Task[None]) -> None:
        """A mistake in this program is a failed transition too: never a service that hangs."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self._events.emit("internal_error", service=name, error=repr(error))
            self._dispatch(name, TransitionFailed(start.epoch, "the router itself failed"))

    def _account(self, name: str, handle: Handle, start: StartTransition, report: transitions.Report) -> None:
        labels = (name, start.transition.value, start.from_depth.value)
        began, ended, failure = handle.transition_began, self._clock.monotonic(), report.failure
        self._metrics.transitions.labels(*labels, "failed" if failure else "succeeded").inc()
        if failure is None:
            self._metrics.transition_seconds.labels(*labels).observe(ended - began)
        fields: dict[str, Any] = {"error": failure.reason} if failure else {}
        if start.transition is Transition.WAKE:
            handle.asking.wake_ends(ended)
            fields |= _told(handle.asking.wake)
            fields["canary_seconds"] = round(report.canary_seconds, 3)
            if report.canary_seconds:
                self._metrics.canary_seconds.labels(name).observe(report.canary_seconds)
            if failure is None:
                handle.last_wake_seconds = ended - began
                handle.last_wake = LastWake(began, ended, report.canary_seconds)
        self._events.emit(
            "transition",
            service=name,
            transition=start.transition.value,
            from_depth=start.from_depth.value,
            seconds=round(ended - began, 3),
            **fields,
        )

    # ---- observation

    def _watch(self, service: Service, handle: Handle) -> asyncio.Task[None]:
        name = service.name
        guardian = Guardian(
            service,
            handle.engine,
            self._clock,
            self._intervals,
            lambda: self.state(name),
            lambda: handle.notebook.memory,
            lambda event: self._dispatch(name, event),
        )
        return asyncio.create_task(guardian.watch_for_ever())


def _told(wake: Wake | None) -> dict[str, Any]:
    """Why a wake began and for whom, for the log."""
    if wake is None:
        return {}
    request, key = (wake.asker.request_id, wake.asker.key) if wake.asker else (None, None)
    return {"cause": wake.reason, "request": request, "key": key, "operator": wake.operator}
