"""The right to have a request at an engine, what it waited for, and what is kept beside a service's state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wake_router.askers import Asking
from wake_router.engine import Engine
from wake_router.lifecycle import Refusal, ServiceState, StartTransition
from wake_router.notebook import ServiceNotebook
from wake_router.registry import Service

if TYPE_CHECKING:
    from wake_router.executor import Executor


class RefusedError(Exception):
    """A request can't be forwarded now. `kind` is None when it was held until its deadline."""

    def __init__(
        self, state: ServiceState, reason: str, kind: Refusal | None = None, *, stopping: bool = False
    ) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.kind = kind
        self.stopping = stopping


class Lease:
    """The right to have one request in flight at a service. Must be released."""

    __slots__ = ("_executor", "_handle", "_released", "epoch", "held", "service", "when_cut")

    def __init__(self, executor: Executor, service: str, handle: Handle, epoch: int, held: Held) -> None:
        self._executor = executor
        self._handle = handle
        self._released = False
        self.service = service
        self.epoch = epoch
        self.held = held
        self.when_cut: Callable[[str], None] = _ignore
        handle.leases.add(self)

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if not self._released:
            self._released = True
            self._handle.leases.discard(self)
            self._executor.end_request(self.service, self._handle)


@dataclass(frozen=True, slots=True)
class Held:
    """How long a request waited in the router, in seconds, and for what of it."""

    seconds: float = 0.0
    wake_seconds: float = 0.0
    """While the wake that ended it ran, without its canary."""
    canary_seconds: float = 0.0

    @property
    def queue_seconds(self) -> float:
        """Until that wake began: other wakes on the device, an engine that boots, maintenance."""
        return max(0.0, self.seconds - self.wake_seconds - self.canary_seconds)


@dataclass(frozen=True, slots=True)
class LastWake:
    """When the last successful wake began and ended (monotonic), and how long its canary took, in seconds."""

    began: float
    ended: float
    canary_seconds: float

    def held(self, arrived: float, released: float) -> Held:
        """What a request that waited from one moment to the other waited for."""
        shared = max(0.0, min(released, self.ended) - max(arrived, self.began))
        canary = min(shared, self.canary_seconds)
        return Held(released - arrived, shared - canary, canary)


def _ignore(reason: str) -> None:
    """What happens to a request that can't be cut yet: it ends by itself."""


@dataclass(slots=True)
class Handle:
    """What the executor keeps for one service beside its pure state."""

    service: Service
    engine: Engine
    notebook: ServiceNotebook
    asking: Asking = field(default_factory=Asking)
    held: deque[asyncio.Future[int]] = field(default_factory=deque)
    held_bytes: int = 0
    leases: set[Lease] = field(default_factory=set)
    observer: asyncio.Task[None] | None = None
    transition: asyncio.Task[None] | None = None
    transition_began: float = 0.0
    transition_start: StartTransition | None = None
    last_wake: LastWake = LastWake(0.0, 0.0, 0.0)
    last_wake_seconds: float | None = None
    offloaded_incarnation: str | None = None
