"""Carries out what `lifecycle` and `scheduler` decide, and feeds the results back to them as events.

Transitions run in tasks that belong to the executor: no client that goes away and no admin call that times
out ever cancels one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from wake_router import lifecycle, scheduler, waits
from wake_router.clock import Clock
from wake_router.engine import Engine, EngineError, EngineUnreachableError, Timeouts
from wake_router.events import Events
from wake_router.intent_store import IntentStore, IntentStoreError
from wake_router.lifecycle import (
    AbandonTransition,
    Depth,
    Effect,
    Event,
    Forward,
    Hold,
    HoldEnded,
    Observed,
    Ordered,
    OrderWithdrawn,
    PinChanged,
    Presence,
    Record,
    Refuse,
    RefuseHeld,
    ReleaseHeld,
    Remember,
    RequestArrived,
    RequestEnded,
    ServiceState,
    StartTransition,
    Tick,
    Transition,
    TransitionFailed,
    TransitionSucceeded,
)
from wake_router.metrics import Metrics
from wake_router.registry import Registry, Service
from wake_router.scheduler import Fleet, Member
from wake_router.settings import Settings

TICK_SECONDS: Final = 0.2


class RefusedError(Exception):
    """A request can't be forwarded now."""

    def __init__(
        self, state: ServiceState, reason: str, *, queue_full: bool = False, stopping: bool = False
    ) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.queue_full = queue_full
        self.stopping = stopping


class OrderError(Exception):
    """A person's order couldn't be carried out; the message is a sentence."""


class OrderTimeoutError(OrderError):
    """It wasn't done in the time given."""


class Lease:
    """The right to have one request in flight at a service. Must be released."""

    __slots__ = ("_executor", "_generation", "_released", "epoch", "held_seconds", "service")

    def __init__(
        self, executor: Executor, service: str, generation: int, epoch: int, held_seconds: float
    ) -> None:
        self._executor = executor
        self._generation = generation
        self._released = False
        self.service = service
        self.epoch = epoch
        self.held_seconds = held_seconds

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if not self._released:
            self._released = True
            self._executor.end_request(self.service, self._generation)


@dataclass(slots=True)
class _Handle:
    """What the executor keeps for one service beside its pure state."""

    service: Service
    engine: Engine
    generation: int
    held: deque[asyncio.Future[int]]
    writing: asyncio.Lock
    observer: asyncio.Task[None] | None = None
    transition: asyncio.Task[None] | None = None
    transition_began: float = 0.0
    last_wake_seconds: float | None = None


class Executor:
    """Owns every service's state; the only one who may put an engine to sleep or wake it."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        clock: Clock,
        store: IntentStore,
        events: Events,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._session = session
        self._clock = clock
        self._store = store
        self._events = events
        self._metrics = metrics
        self._fleet = Fleet()
        self._handles: dict[str, _Handle] = {}
        self._names: dict[str, Service] = {}
        self._generations = 0
        self._ticker: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._watchers: list[tuple[str, Callable[[ServiceState], bool], asyncio.Future[None]]] = []
        self._stopping = False
        self.instance = ""
        self.waits = _waits(settings)

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
        policy = _policy(service, self._settings)
        devices = frozenset(service.devices)
        if handle is None:
            state = ServiceState(since=now, last_activity=now, record=self._store.read(service.name))
            self._handles[service.name] = self._new_handle(service)
            return Member(policy=policy, devices=devices, state=state), "added"
        before, handle.service = handle.service, service
        state = self._fleet.members[service.name].state
        if (before.base_url, before.launcher_url) != (service.base_url, service.launcher_url):
            self._drop_tasks(handle)
            handle.engine = self._engine(service)
            handle.observer = self._observe_in_background(service.name)
            state = _moved(state, now)
            self._fleet = scheduler.without_turns(self._fleet, service.name)
            return Member(policy=policy, devices=devices, state=state), "moved to another address"
        return Member(policy=policy, devices=devices, state=state), "changed" if before != service else ""

    def _new_handle(self, service: Service) -> _Handle:
        self._generations += 1
        handle = _Handle(service, self._engine(service), self._generations, deque(), asyncio.Lock())
        handle.observer = self._observe_in_background(service.name)
        return handle

    def _engine(self, service: Service) -> Engine:
        timeouts = Timeouts(
            connect=self._settings.connect_timeout_seconds,
            sleep=self._settings.sleep_timeout_seconds,
            wake=self._settings.wake_timeout_seconds,
            reload=self._settings.reload_timeout_seconds,
        )
        return Engine(self._session, service.base_url, service.launcher_url, timeouts)

    def _forget(self, name: str) -> None:
        handle = self._handles.pop(name)
        self._drop_tasks(handle)
        self._refuse_all(handle, self._fleet.members[name].state, "the service has been removed")

    def _drop_tasks(self, handle: _Handle) -> None:
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
        """Give transitions under way some time to end; the intents of those that don't are on disk."""
        running: list[asyncio.Task[Any]] = [
            handle.transition for handle in self._handles.values() if handle.transition is not None
        ]
        running += list(self._background)
        if running:
            await asyncio.wait(running, timeout=seconds)
        if self._ticker is not None:
            self._ticker.cancel()
        for handle in self._handles.values():
            self._drop_tasks(handle)

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for name in list(self._handles):
                self._dispatch(name, Tick())

    # ---- requests

    async def admit(self, name: str, wished_wait_seconds: float | None = None) -> Lease:
        """Wait until a request may be forwarded to a service; raises RefusedError, or KeyError for an unknown
        service.
        """
        handle = self._handles[name]
        if self._stopping:
            raise RefusedError(self.state(name), "the router stops", stopping=True)
        arrived = self._clock.monotonic()
        for effect in self._dispatch(name, RequestArrived()):
            match effect:
                case Forward():
                    return Lease(self, name, handle.generation, self.state(name).epoch, 0.0)
                case Refuse(queue_full, reason):
                    raise RefusedError(self.state(name), reason, queue_full=queue_full)
                case _:
                    continue
        epoch = await self._wait_held(name, handle, arrived, wished_wait_seconds)
        held_seconds = self._clock.monotonic() - arrived
        self._metrics.held_seconds.labels(name).observe(held_seconds)
        return Lease(self, name, handle.generation, epoch, held_seconds)

    async def _wait_held(self, name: str, handle: _Handle, arrived: float, wished: float | None) -> int:
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
        return waits.hold_seconds(waits.depth_to_wake_from(self.state(name)), self.waits, wished)

    def _stop_waiting(self, name: str, handle: _Handle, ready: asyncio.Future[int]) -> None:
        """A held request leaves; if it had just been released, it counts as in flight and ends."""
        if not ready.done():
            handle.held.remove(ready)
            self._dispatch(name, HoldEnded())
        elif ready.exception() is None:
            self.end_request(name, handle.generation)

    def end_request(self, name: str, generation: int) -> None:
        """The last byte of a request's response is out."""
        handle = self._handles.get(name)
        if handle is not None and handle.generation == generation:
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

    # ---- orders of people

    async def order(self, name: str, depth: Depth, timeout_seconds: float) -> ServiceState:
        """Bring a service to a depth and wait; raises OrderError, or KeyError for an unknown service."""
        self._dispatch(name, Ordered(depth))
        try:
            await self._until(name, lambda state: state.ordered is not depth, timeout_seconds)
        except TimeoutError:
            self._dispatch(name, OrderWithdrawn())
            state = self.state(name)
            busy = f" {state.in_flight} requests are in flight." if state.in_flight else ""
            raise OrderTimeoutError(
                f"Service '{name}' is {state.depth}, and not {depth} within {timeout_seconds:g} s.{busy}"
            ) from None
        state = self.state(name)
        if not lifecycle.at_least_as_deep(state.depth, depth) or state.conditions:
            raise OrderError(f"Service '{name}' is {state.depth}, not {depth}: {state.reason}")
        return state

    def pin(self, name: str, pinned: bool) -> None:
        """Keep a service awake, or let it sleep again; raises KeyError for an unknown service."""
        self._dispatch(name, PinChanged(pinned))

    async def _until(self, name: str, holds: Callable[[ServiceState], bool], timeout_seconds: float) -> None:
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
        for watched, holds, reached in self._watchers:
            if watched == name and not reached.done() and holds(state):
                reached.set_result(None)

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
                handle.transition_began = self._clock.monotonic()
                handle.transition = asyncio.create_task(self._carry_out(name, handle, effect))
            case AbandonTransition():
                if handle.transition is not None:
                    handle.transition.cancel()
                    handle.transition = None
            case Remember(incarnation, depth):
                self._start_write(name, handle, Record(incarnation=incarnation, depth=depth))
            case _:
                pass

    def _refuse_all(
        self, handle: _Handle, state: ServiceState, reason: str, *, stopping: bool = False
    ) -> None:
        while handle.held:
            handle.held.popleft().set_exception(RefusedError(state, reason, stopping=stopping))

    def _start_write(self, name: str, handle: _Handle, record: Record) -> asyncio.Task[str | None]:
        """Write to the store in the order of the calls; the task's result says why it failed, if it did."""

        async def write() -> str | None:
            async with handle.writing:
                try:
                    await asyncio.to_thread(self._store.write, name, record)
                except IntentStoreError as error:
                    self._events.emit("intent_store", service=name, error=str(error))
                    return str(error)
                return None

        task = asyncio.create_task(write())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _write(self, name: str, handle: _Handle, record: Record) -> str | None:
        """Like _start_write, and wait; a cancelled caller doesn't break the write off."""
        return await asyncio.shield(self._start_write(name, handle, record))

    # ---- transitions

    async def _carry_out(self, name: str, handle: _Handle, start: StartTransition) -> None:
        failure = await self._failure_of(name, handle, start)
        seconds = self._clock.monotonic() - handle.transition_began
        self._account(name, handle, start, failure, seconds)
        handle.transition = None
        self._dispatch(name, failure or TransitionSucceeded(start.epoch))

    async def _failure_of(
        self, name: str, handle: _Handle, start: StartTransition
    ) -> TransitionFailed | None:
        current: lifecycle.Step | None = None
        try:
            for current in lifecycle.steps_of(start.transition, start.from_depth):
                intent = Record(incarnation=start.incarnation, depth=start.from_depth, open_step=current)
                problem = await self._write(name, handle, intent)
                # A wake may go on unrecorded: the record says asleep, and so the weights are reloaded after a
                # crash.
                if problem and start.transition is not Transition.WAKE:
                    return TransitionFailed(start.epoch, problem, untouched=True)
                await handle.engine.perform(current)
            await self._confirm(handle.engine, start.transition)
        except EngineUnreachableError as error:
            return TransitionFailed(start.epoch, str(error), unreachable=True)
        except EngineError as error:
            return TransitionFailed(start.epoch, f"{current or start.transition} failed: {error}")
        reached = Record(incarnation=start.incarnation, depth=lifecycle.TARGET[start.transition])
        await self._write(name, handle, reached)
        return None

    async def _confirm(self, engine: Engine, transition: Transition) -> None:
        asleep = await engine.is_sleeping(self._settings.sleep_timeout_seconds)
        if asleep is (transition is Transition.WAKE):
            raise EngineError(
                f"the engine says that it is {'asleep' if asleep else 'awake'} after {transition}."
            )

    def _account(
        self,
        name: str,
        handle: _Handle,
        start: StartTransition,
        failure: TransitionFailed | None,
        seconds: float,
    ) -> None:
        labels = (name, start.transition.value, start.from_depth.value)
        self._metrics.transitions.labels(*labels, "failed" if failure else "succeeded").inc()
        if failure is None:
            self._metrics.transition_seconds.labels(*labels).observe(seconds)
            if start.transition is Transition.WAKE:
                handle.last_wake_seconds = seconds
        fields: dict[str, Any] = {"error": failure.reason} if failure else {}
        self._events.emit(
            "transition",
            service=name,
            transition=start.transition.value,
            from_depth=start.from_depth.value,
            seconds=round(seconds, 3),
            **fields,
        )

    # ---- observation

    def _observe_in_background(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._observe_for_ever(name))

    async def _observe_for_ever(self, name: str) -> None:
        while True:
            engine, epoch = self._handles[name].engine, self.state(name).epoch
            look = await engine.look()
            if look is not None:
                self._dispatch(name, Observed(epoch, look.presence, look.incarnation, look.asleep))
            await asyncio.sleep(self._settings.observe_interval_seconds)


def _moved(state: ServiceState, now: float) -> ServiceState:
    """The state of a service whose engine is another one now: unknown, but its requests stay counted."""
    return ServiceState(
        since=now,
        last_activity=now,
        in_flight=state.in_flight,
        held=state.held,
        pinned=state.pinned,
        ordered=state.ordered,
        epoch=state.epoch + 1,
        reason="the engine's address has changed",
    )


def _policy(service: Service, settings: Settings) -> lifecycle.Policy:
    sleep, offload = service.idle_sleep_seconds, service.idle_offload_seconds
    return lifecycle.Policy(
        idle_sleep_seconds=settings.idle_sleep_seconds if sleep is None else sleep,
        idle_offload_seconds=settings.idle_offload_seconds if offload is None else offload,
        pinned=service.pin,
        level_2_allowed=service.allow_level_2 == "always",
        held_max=settings.held_max,
    )


def _waits(settings: Settings) -> waits.Waits:
    return waits.Waits(
        hold_sleeping=settings.hold_sleeping_seconds,
        hold_offloaded=settings.hold_offloaded_seconds,
        hold_restarting=settings.hold_restarting_seconds,
        hold_max=settings.hold_max_seconds,
        retry_after_sleeping=settings.retry_after_sleeping_seconds,
        retry_after_offloaded=settings.retry_after_offloaded_seconds,
        retry_after_restarting=settings.retry_after_restarting_seconds,
        retry_after_max=settings.retry_after_max_seconds,
    )
