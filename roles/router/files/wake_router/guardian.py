"""Looks after one engine: is it there, is it the same, does it still answer, are its answers sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from wake_router import transitions
from wake_router.clock import Clock
from wake_router.engine import Engine, EngineError, Look
from wake_router.lifecycle import Depth, Distrusted, Event, Observed, Presence, ServiceState
from wake_router.memory import Memory
from wake_router.registry import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often something is done, in seconds; 0: never."""

    look: float = 1.0
    wedged: float = 120.0
    """An awake engine that doesn't answer /is_sleeping for so long is not trusted any more."""
    corruption: float = 30.0
    canary: float = 21600.0


def sighting(epoch: int, look: Look) -> Observed:
    """The event of a look; `epoch` is the service's when the look began."""
    return Observed(epoch, look.presence, look.incarnation, look.asleep, look.born_here)


class Guardian:
    """The task that watches one engine."""

    def __init__(
        self,
        service: Service,
        engine: Engine,
        clock: Clock,
        intervals: Intervals,
        state: Callable[[], ServiceState],
        memory: Callable[[], Memory],
        dispatch: Callable[[Event], object],
    ) -> None:
        self._service = service
        self._engine = engine
        self._clock = clock
        self._intervals = intervals
        self._state = state
        self._memory = memory
        self._dispatch = dispatch
        now = clock.monotonic()
        self._answered_at = self._corruption_at = self._canary_at = now
        self._corrupted_before: tuple[str | None, float] = (None, 0.0)

    async def watch_for_ever(self) -> None:
        """Look, report, wait; ends when it is cancelled."""
        while True:
            await self._look()
            if self._state().serving:
                await self._check_soundness()
            await asyncio.sleep(self._intervals.look)

    async def _look(self) -> None:
        state = self._state()
        look = await self._engine.look()
        if look is not None:
            self._dispatch(sighting(state.epoch, look))
        self._check_wedged(state, look)

    def _check_wedged(self, state: ServiceState, look: Look | None) -> None:
        now = self._clock.monotonic()
        answered = look is not None and (look.asleep is not None or look.presence is not Presence.UP)
        if answered or state.depth is not Depth.AWAKE:
            self._answered_at = now
        elif self._intervals.wedged and now - self._answered_at >= self._intervals.wedged:
            seconds = now - self._answered_at
            self._distrust(state, f"/is_sleeping has not been answered for {seconds:.0f} s")

    async def _check_soundness(self) -> None:
        state, now = self._state(), self._clock.monotonic()
        try:
            if self._intervals.corruption and now - self._corruption_at >= self._intervals.corruption:
                self._corruption_at = now
                await self._check_corruption(state)
            if self._intervals.canary and now - self._canary_at >= self._intervals.canary:
                self._canary_at = now
                await self._check_canary(state)
        except EngineError:
            # An engine that can't be asked is the look's business, not a matter of soundness.
            return

    async def _check_corruption(self, state: ServiceState) -> None:
        count = await self._engine.corrupted_requests()
        incarnation, before = self._corrupted_before
        self._corrupted_before = (state.incarnation, count)
        if count > (before if incarnation == state.incarnation else 0.0):
            self._distrust(state, f"the engine counts {count:g} answers with NaN (vllm:corrupted_requests)")

    async def _check_canary(self, state: ServiceState) -> None:
        memory = self._memory()
        if memory.canary is None:
            return
        problem = await transitions.canary_problem(self._engine, self._service, memory)
        if problem:
            self._distrust(state, problem)

    def _distrust(self, state: ServiceState, reason: str) -> None:
        self._dispatch(Distrusted(state.epoch, reason))
