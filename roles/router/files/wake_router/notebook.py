"""Writes down what is done to one service, ordered for it and learned about it, in the order in which it
happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from wake_router.durable import DurableWriteError
from wake_router.events import Events
from wake_router.intent_store import IntentStore
from wake_router.lifecycle import Condition, Record, ServiceState
from wake_router.memory import Memory, MemoryStore
from wake_router.service_state import SOMEBODY
from wake_router.standing_orders import Parking, StandingOrders


class ServiceNotebook:
    """Intents, standing orders and memory of one service."""

    def __init__(
        self,
        service: str,
        intents: IntentStore,
        standing: StandingOrders,
        memories: MemoryStore,
        events: Events,
    ) -> None:
        self._service = service
        self._intents = intents
        self._standing = standing
        self._memories = memories
        self._events = events
        self._order = asyncio.Lock()
        self._writing: set[asyncio.Task[Any]] = set()
        self.memory = memories.read(service)
        self.when_learned: Callable[[], None] = lambda: None

    def record(self) -> Record | None:
        """What the intent store holds."""
        return self._intents.read(self._service)

    def intend_soon(self, record: Record) -> asyncio.Task[str | None]:
        """Write to the intent store; the task's result says why it failed. Shield it where it is awaited: a
        write is never broken off.
        """
        return self._start(self._write(self._intents.write, record))

    def park_soon(self, parking: Parking | None) -> None:
        """Write down that it is parked, None: not any more. `finish` waits for it."""
        self._start(self._write(self._standing.park, parking))

    def first_state(self, now: float) -> ServiceState:
        """What is known about the service when the router starts; `now` in monotonic seconds."""
        parking = self._standing.parking(self._service)
        return ServiceState(
            since=now,
            last_activity=now,
            record=self.record(),
            pinned=self.memory.pinned,
            conditions=frozenset() if parking is None else frozenset({Condition.MAINTENANCE}),
            maintenance_until=now + (parking.seconds if parking else 0.0),
            parked_by=parking.by if parking else SOMEBODY,
        )

    async def learn(self, memory: Memory) -> None:
        """Keep what has been learned; a failure to write is only told."""
        self.memory = memory
        self.when_learned()
        await asyncio.shield(self._start(self._write(self._memories.write, memory)))

    def learn_soon(self, memory: Memory) -> None:
        """The same without waiting."""
        self.memory = memory
        self.when_learned()
        self._start(self._write(self._memories.write, memory))

    def note(self, text: str) -> None:
        """Say something in the log."""
        self._events.emit("note", service=self._service, text=text)

    async def finish(self) -> None:
        """Wait until everything is written."""
        if self._writing:
            await asyncio.wait(set(self._writing))

    def _start(self, work: Coroutine[Any, Any, str | None]) -> asyncio.Task[str | None]:
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _write(
        self, write: Callable[[str, Any], None], content: Record | Memory | Parking | None
    ) -> str | None:
        async with self._order:
            try:
                await asyncio.to_thread(write, self._service, content)
            except DurableWriteError as error:
                self._events.emit("disk", service=self._service, error=str(error))
                return str(error)
            return None
