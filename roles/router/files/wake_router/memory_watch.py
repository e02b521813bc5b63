"""Asks launchers what their engines hold, and keeps the newest answer of each. Decides nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from wake_router.admin_contract import DeviceMemory, ServiceMemory
from wake_router.clock import Clock
from wake_router.device_memory import (
    Measurement,
    MeasurementError,
    Member,
    device_memory,
    is_due,
    parse_measurement,
    service_memory,
    stale_seconds,
)
from wake_router.engine import Engine, EngineError
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.memory_plan import NO_PLAN, MemoryPlanError, read_memory_plan

TICK_SECONDS: Final = 0.5


class MemoryWatch:
    """Measures every service of the executor in turn, each in a task of its own: a slow launcher delays no
    other.
    """

    def __init__(
        self, executor: Executor, clock: Clock, events: Events, registry: Path, interval_seconds: float
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._events = events
        self._registry = registry
        self._interval = interval_seconds
        self._plan = NO_PLAN
        self._measured: dict[str, Measurement] = {}
        self._failures: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None

    def load_plan(self) -> None:
        """Read the plan's figures anew. Unusable ones are told and count as none: nothing depends on them."""
        try:
            self._plan = read_memory_plan(self._registry)
        except MemoryPlanError as error:
            self._plan = NO_PLAN
            self._events.emit("device_memory", error=str(error))
        self._executor.name_devices({device.device: device.name for device in self._plan.devices})

    def start(self) -> None:
        """Begin to measure."""
        self._ticker = asyncio.create_task(self._tick_for_ever())
        self._ticker.add_done_callback(lambda done: self._report_crash(None, done))

    def stop(self) -> None:
        """Measure no more."""
        for task in (self._ticker, *self._asking.values()):
            if task is not None:
                task.cancel()

    def devices(self) -> list[DeviceMemory]:
        """Every device as it is now."""
        return device_memory(
            self._plan, self._members(), self._clock.monotonic(), stale_seconds(self._interval)
        )

    def services(self) -> dict[str, ServiceMemory]:
        """By name, every service of which something was measured."""
        members, now = self._members(), self._clock.monotonic()
        found = {member.service: service_memory(member, members, now) for member in members}
        return {name: memory for name, memory in found.items() if memory is not None}

    def _members(self) -> list[Member]:
        return [
            Member(
                service=service.name,
                devices=service.devices,
                depth=state.depth,
                since=state.since,
                measured=self._measured.get(service.name),
                failure=self._failures.get(service.name),
            )
            for service, state in self._executor.services()
        ]

    async def _tick_for_ever(self) -> None:
        while True:
            members, now = self._members(), self._clock.monotonic()
            self._forget_all_but({member.service for member in members})
            for member in members:
                name = member.service
                if name not in self._asking and is_due(self._tried_at.get(name), member, now, self._interval):
                    self._tried_at[name] = now
                    self._ask(name)
            await asyncio.sleep(TICK_SECONDS)

    def _forget_all_but(self, names: set[str]) -> None:
        known: tuple[dict[str, Any], ...] = (self._measured, self._failures, self._tried_at)
        for kept in known:
            for name in kept.keys() - names:
                del kept[name]

    def _ask(self, name: str) -> None:
        handle = self._executor.handle(name)
        if handle.service.launcher_url is not None:
            task = self._asking[name] = asyncio.create_task(self._measure(name, handle.engine))
            task.add_done_callback(lambda done: self._report_crash(name, done))

    async def _measure(self, name: str, engine: Engine) -> None:
        try:
            document = await engine.measured_memory()
            self._measured[name] = parse_measurement(document, self._clock.monotonic())
            self._failures.pop(name, None)
        except MeasurementError as error:
            self._failures[name] = f"The launcher's measurement can't be used: {error}."
        except EngineError as error:
            self._failures[name] = str(error)
        finally:
            self._asking.pop(name, None)

    def _report_crash(self, name: str | None, done: asyncio.Task[None]) -> None:
        """A mistake in this program is told."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self._events.emit("internal_error", service=name, error=repr(error))
