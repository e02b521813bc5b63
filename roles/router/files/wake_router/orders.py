"""What people order: a depth, a pin, a drain, maintenance, a restart, a proof. Each waits until it is done,
for so long.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Final

from wake_router import lifecycle, transitions
from wake_router.clock import Clock, spoken
from wake_router.engine import EngineError
from wake_router.executor import Executor, Handle
from wake_router.guardian import sighting
from wake_router.lifecycle import (
    Depth,
    Distrusted,
    DrainOrdered,
    MaintenanceEnded,
    MaintenanceOrdered,
    Ordered,
    OrderWithdrawn,
    PinChanged,
    RestartOrdered,
    RestartWithdrawn,
    ServiceState,
)
from wake_router.memory import level_2_verdict
from wake_router.service_state import SOMEBODY

CUT_SECONDS: Final = 5.0
"""How long requests that are cut have to leave."""


class OrderError(Exception):
    """A person's order couldn't be carried out; the message is a sentence."""


class OrderTimeoutError(OrderError):
    """It wasn't done in the time given."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What `prove` found, in words."""

    state: ServiceState
    canary: str
    level_2: str


class ForbiddenOrderError(OrderError):
    """The service's declaration or deployment doesn't allow it."""


def _who(operator: str | None) -> str:
    return SOMEBODY if operator is None else f"operator {operator!r}"


class Orders:
    """Carries out orders through the executor. All durations in seconds."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock

    async def order(
        self, name: str, depth: Depth, timeout_seconds: float, operator: str | None = None
    ) -> ServiceState:
        """Bring a service to a depth and wait; raises OrderError, or KeyError for an unknown service.

        `operator` is who orders it, by the name that they give themselves.
        """
        if depth is Depth.OFFLOADED and self._executor.handle(name).service.allow_level_2 == "never":
            raise ForbiddenOrderError(
                f"Service '{name}' must not be offloaded: its weights can't be trusted after a reload. "
                "allow_level_2 in its declaration says so."
            )
        if cordon := self._cordon(name, depth):
            raise ForbiddenOrderError(f"Service '{name}' can't be woken.{cordon}")
        self._executor.handle(name).asking.operator = operator
        self._executor.dispatch(name, Ordered(depth, _who(operator)))
        try:
            await self._executor.until(name, lambda state: state.ordered is not depth, timeout_seconds)
        except TimeoutError:
            self._executor.dispatch(name, OrderWithdrawn())
            state = self._executor.state(name)
            busy = f" Requests in flight: {state.in_flight}." if state.in_flight else ""
            raise OrderTimeoutError(
                f"Service '{name}' is {state.depth.words}, and not {depth.words} within "
                f"{spoken(timeout_seconds)}.{busy}{self._cordon(name, depth)}"
            ) from None
        state = self._executor.state(name)
        if not lifecycle.at_least_as_deep(state.depth, depth) or state.conditions & lifecycle.REPAIR:
            raise OrderError(f"Service '{name}' is {state.depth.words}, not {depth.words}: {state.reason}")
        return state

    def _cordon(self, name: str, wanted: Depth) -> str:
        """The devices that keep a service from a depth, as a sentence; empty where none does."""
        devices = self._executor.cordoned_devices(name)
        if not devices or not lifecycle.needs_wake(self._executor.state(name).depth, wanted):
            return ""
        return f" Cordoned: {', '.join(devices)} (vllmctl uncordon {devices[0]})."

    async def pin(self, name: str, pinned: bool, operator: str | None = None) -> None:
        """Keep a service awake, or let it sleep again; raises KeyError for an unknown service."""
        notebook = self._executor.handle(name).notebook
        if pinned:
            self._executor.handle(name).asking.operator = operator
        self._executor.dispatch(name, PinChanged(pinned))
        await notebook.learn(replace(notebook.memory, pinned=pinned))

    async def drain(
        self, name: str, deadline_seconds: float, limit_seconds: float, operator: str | None = None
    ) -> ServiceState:
        """Hold new requests until maintenance ends, let those in flight end, and cut what hasn't by the
        deadline.

        Raises KeyError for an unknown service.
        """
        now = self._clock.monotonic()
        until = now + deadline_seconds
        self._executor.dispatch(name, DrainOrdered(until, until + limit_seconds, _who(operator)))
        # Requests that are cut still need a moment to leave.
        with contextlib.suppress(TimeoutError):
            await self._executor.until(
                name, lambda state: not state.in_flight, deadline_seconds + CUT_SECONDS
            )
        await self._executor.handle(name).notebook.finish()
        return self._executor.state(name)

    async def begin_maintenance(
        self, name: str, limit_seconds: float, operator: str | None = None
    ) -> ServiceState:
        """Hold requests and leave the engine alone; raises KeyError for an unknown service."""
        until = self._clock.monotonic() + limit_seconds
        self._executor.dispatch(name, MaintenanceOrdered(until, _who(operator)))
        await self._executor.handle(name).notebook.finish()
        return self._executor.state(name)

    async def restart(
        self, name: str, deadline_seconds: float, timeout_seconds: float, operator: str | None = None
    ) -> Proof:
        """Drain, have the launcher start a new process of the engine, and let it serve when it is proven.

        A service that was parked before stays parked. Raises OrderError, or KeyError for an unknown service.
        """
        handle, before = self._executor.handle(name), self._executor.state(name)
        if self._executor.launcher_token(handle.service) is None:
            raise ForbiddenOrderError(
                f"Service '{name}' can't be restarted on order: there is no launcher, or no token for it in "
                "FRONTDOOR_LAUNCHER_TOKENS. Deploy again, or restart its container."
            )
        end = self._clock.monotonic() + timeout_seconds
        try:
            if not before.conditions & lifecycle.PARKED:
                await self.drain(name, min(deadline_seconds, timeout_seconds), timeout_seconds, operator)
            await self._restart_process(name, before.incarnation, end, operator)
            await self._order_until(name, Depth.AWAKE, end, operator)
            word = await self._prove_answers(name, handle)
        finally:
            self._executor.dispatch(name, RestartWithdrawn())
            if not before.conditions & lifecycle.PARKED:
                self._executor.dispatch(name, MaintenanceEnded())
                await handle.notebook.finish()
        verdict = level_2_verdict(handle.service, handle.notebook.memory)[1]
        return Proof(self._executor.state(name), word, verdict)

    async def _restart_process(self, name: str, before: str | None, end: float, operator: str | None) -> None:
        self._executor.dispatch(name, RestartOrdered(_who(operator)))
        left = max(0.1, end - self._clock.monotonic())
        try:
            await self._executor.until(name, lambda state: not state.restart_ordered, left)
        except TimeoutError:
            raise OrderTimeoutError(
                f"Service '{name}' was not restarted in time; it waits for its devices."
            ) from None
        state = self._executor.state(name)
        if before is not None and state.incarnation == before:
            raise OrderError(f"Service '{name}' was not restarted: {state.reason}")

    async def prove(self, name: str, timeout_seconds: float, operator: str | None = None) -> Proof:
        """Show that a service may be trusted, record what is still missing for that, and end its maintenance.

        Raises OrderError, or KeyError for an unknown service.
        """
        end = self._clock.monotonic() + timeout_seconds
        handle = self._executor.handle(name)
        # Maintenance usually replaced the engine a moment ago: don't take the old one for the new one.
        await self._look_now(name, handle)
        await self._order_until(name, Depth.AWAKE, end, operator)
        word = await self._prove_answers(name, handle)
        trusted, reason = level_2_verdict(handle.service, handle.notebook.memory)
        earn = handle.service.allow_level_2 == "auto" and not trusted
        if earn and self._executor.cordoned_devices(name):
            earn, reason = False, f"{reason}; its device is cordoned, so it is not tried now"
        if earn and handle.notebook.memory.canary is not None and not handle.notebook.memory.level_2_broken:
            await self._order_until(name, Depth.OFFLOADED, end, operator)
            await self._order_until(name, Depth.AWAKE, end, operator)
            reason = level_2_verdict(handle.service, handle.notebook.memory)[1]
        self._executor.dispatch(name, MaintenanceEnded())
        await handle.notebook.finish()
        return Proof(self._executor.state(name), word, reason)

    async def _look_now(self, name: str, handle: Handle) -> None:
        epoch = self._executor.state(name).epoch
        look = await handle.engine.look()
        if look is not None:
            self._executor.dispatch(name, sighting(epoch, look))

    async def _order_until(self, name: str, depth: Depth, end: float, operator: str | None) -> None:
        await self.order(name, depth, max(0.1, end - self._clock.monotonic()), operator)

    async def _prove_answers(self, name: str, handle: Handle) -> str:
        """Compare with the canary, or record one from a fresh engine; returns what was done."""
        state, notebook = self._executor.state(name), handle.notebook
        try:
            may_record = handle.service.may_record_canary
            if notebook.memory.canary is None and state.fresh and may_record:
                why = await transitions.record_canary(handle.engine, handle.service, notebook, ordered=True)
                return "recorded" if why is None else f"not possible: {why}"
            expected = notebook.memory.canary
            problem = await transitions.canary_problem(handle.engine, handle.service, notebook.memory)
        except EngineError as error:
            raise OrderError(f"Service '{name}' can't be proven: {error}") from None
        if problem:
            self._executor.dispatch(name, Distrusted(state.epoch, problem))
            raise OrderError(f"Service '{name}' is not sound: {problem}")
        if expected is None and not may_record:
            # Who lets such weights pass (vllm_service_weights_required) wants them served; garbage is told.
            return "sensible, and not recorded, since the evidence about its weights does not vouch for it"
        return "matched" if expected is not None else "none is recorded, since the engine isn't fresh"
