"""Carries out one transition of one engine, step by step, each destructive one with its intent on the disk
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from wake_router import canary, lifecycle
from wake_router.clock import Clock
from wake_router.engine import (
    CanaryUnavailableError,
    Engine,
    EngineError,
    EngineOutOfMemoryError,
    EngineUnreachableError,
)
from wake_router.lifecycle import Depth, Record, StartTransition, Step, Transition, TransitionFailed
from wake_router.memory import Memory
from wake_router.registry import Service

_HARMLESS: Final = frozenset({Step.RECORD_CANARY})
"""Steps that change nothing in the engine, and so leave no intent."""


CANARY_ATTEMPTS: Final = 2


class Notebook(Protocol):
    """Where a transition writes down what it does and learns."""

    memory: Memory

    def intend_soon(self, record: Record) -> asyncio.Task[str | None]:
        """Write to the intent store after all that was written before; its result says why it failed, None if
        it didn't.
        """

    async def learn(self, memory: Memory) -> None:
        """Keep what has been learned."""

    def note(self, text: str) -> None:
        """Say something in the log."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One transition to be carried out."""

    start: StartTransition
    service: Service
    engine: Engine
    notebook: Notebook
    confirm_seconds: float
    real_level_2: bool
    """Whether the weights have been discarded by this router in this incarnation, so that a wake proves
    level 2.
    """
    launcher_token: str | None
    """With which the launcher takes an order to restart; None: it takes none."""
    clock: Clock


@dataclass(slots=True)
class Report:
    """How a transition went. `canary_seconds`: how much of its time the canary took."""

    failure: TransitionFailed | None = None
    canary_seconds: float = 0.0


async def carry_out(task: Assignment) -> Report:
    """Do all steps and confirm the result."""
    report = Report()
    report.failure = await _carry_out(task, report)
    return report


async def _carry_out(task: Assignment, report: Report) -> TransitionFailed | None:
    start = task.start
    current: Step | None = None
    try:
        for current in lifecycle.steps_of(start.transition, start.from_depth):
            if current is Step.CANARY and not _must_be_proven(task):
                continue
            problem = await _take(task, current, report)
            # A wake may go on unrecorded: the record says asleep, and after a crash the weights are reloaded.
            # So may a restart: the next incarnation is recognised without a record.
            if problem and start.transition in (Transition.SLEEP, Transition.OFFLOAD):
                return TransitionFailed(start.epoch, problem, untouched=True)
        if start.transition is Transition.RESTART:
            return None
        await _confirm(task)
    except EngineUnreachableError as error:
        return TransitionFailed(start.epoch, str(error), unreachable=True)
    except EngineOutOfMemoryError as error:
        return TransitionFailed(start.epoch, f"{current} failed: {error}", out_of_memory=True)
    except EngineError as error:
        return TransitionFailed(start.epoch, f"{current or start.transition} failed: {error}")
    written = task.notebook.intend_soon(
        Record(incarnation=start.incarnation, depth=lifecycle.TARGET[start.transition])
    )
    if start.transition is not Transition.WAKE:
        await asyncio.shield(written)
    # A woken engine serves before the disk says so. After a crash in between, an open step is found there: of
    # a wake from level 1, in which case the engine's own word is enough (it has been proven, and nothing can
    # have begun since, because what is written later is later on the disk), or any other, after which the
    # weights are reloaded.
    return None


async def _take(task: Assignment, step: Step, report: Report) -> str | None:
    """Make one step; returns why its intent can't be written, in which case a descent has not been made."""
    if step in _HARMLESS:
        await _do(task, step, report)
        return None
    start = task.start
    written = asyncio.shield(task.notebook.intend_soon(_intent(start, step)))
    if _discards_nothing(start):
        try:
            await _do(task, step, report)
        finally:
            # Nothing comes of the canary's answer before the disk says that it has been asked.
            if step is Step.CANARY:
                await written
        return None
    problem = await written
    if problem is None or start.transition in (Transition.WAKE, Transition.RESTART):
        await _do(task, step, report)
    return problem


def _discards_nothing(start: StartTransition) -> bool:
    """Whether the steps of a transition needn't wait for the disk, which may take longer than all the rest of
    the router's work.

    A wake from level 1 discards nothing: if the router dies before its intent is on the disk, the record
    still says `sleeping`, and an engine that is awake against its record gets its weights reloaded (or its
    canary asked, where they may not be). That doesn't hold for one that isn't proven: its record may be older
    than the doubt.
    """
    return start.transition is Transition.WAKE and start.from_depth is Depth.SLEEPING and not start.unproven


def _intent(start: StartTransition, step: Step) -> Record:
    return Record(
        incarnation=start.incarnation, depth=start.from_depth, open_step=step, proven=not start.unproven
    )


async def _do(task: Assignment, step: Step, report: Report) -> None:
    if step is Step.RECORD_CANARY:
        if task.start.fresh:
            await record_canary(task.engine, task.service, task.notebook)
    elif step is Step.CANARY:
        began = task.clock.monotonic()
        try:
            await _prove(task)
        finally:
            report.canary_seconds = task.clock.monotonic() - began
    elif step is Step.ORDER_RESTART:
        if task.launcher_token is None:
            raise EngineError("there is no launcher's token for it; deploy again.")
        await task.engine.order_restart(task.start.incarnation, task.launcher_token)
    else:
        await task.engine.perform(step)


async def _confirm(task: Assignment) -> None:
    asleep = await task.engine.is_sleeping(task.confirm_seconds)
    if asleep is (task.start.transition is Transition.WAKE):
        word = "asleep" if asleep else "awake"
        raise EngineError(f"the engine says that it is {word} after {task.start.transition}.")


async def record_canary(
    engine: Engine, service: Service, notebook: Notebook, *, ordered: bool = False
) -> str | None:
    """Record what a fresh engine answers, if it answers twice the same and sensibly; returns why there is
    none, or None when there is one. Raises EngineError.

    `ordered`: a person or a deployment asks for it, which is worth another try after all have failed.
    """
    attempts = notebook.memory.canary_attempts
    if notebook.memory.canary is not None:
        return None
    if attempts >= CANARY_ATTEMPTS and not ordered:
        return f"it was tried {attempts} times"
    if not service.may_record_canary:
        # What damaged weights say would be what is expected from then on.
        why = "the evidence about its weights does not vouch for what it would record"
        notebook.note(f"no canary: {why}")
        return why
    attempts %= CANARY_ATTEMPTS
    # Written down first: an engine that dies of it is asked for less the next time, and then no more.
    await notebook.learn(replace(notebook.memory, canary_attempts=attempts + 1))
    try:
        first, second = [
            await engine.ask_canary(service.task, service.model, plain=attempts > 0) for _ in range(2)
        ]
    except CanaryUnavailableError as error:
        notebook.note(f"no canary: {error}")
        return f"the engine doesn't answer it: {error}"
    problem = canary.degeneracy(first) or canary.degeneracy(second) or canary.difference(first, second)
    if problem:
        notebook.note(f"no canary: {problem}")
        return problem
    await notebook.learn(replace(notebook.memory, canary=first))
    notebook.note("its canary was recorded: what it answered now is expected after each wake")
    if service.task == "generate":
        await _record_image_canary(engine, service, notebook)
    return None


async def _record_image_canary(engine: Engine, service: Service, notebook: Notebook) -> None:
    """Whether a model sees is found out by asking it, once: not where the other canary is known."""
    try:
        first, second = [await engine.ask_about_image(service.model) for _ in range(2)]
    except EngineUnreachableError:
        raise
    except CanaryUnavailableError as error:
        notebook.note(f"it takes no pictures, so its canary has none ({error})")
        return
    except EngineError as error:
        notebook.note(f"no canary with a picture: {error}")
        return
    problem = canary.degeneracy(first) or canary.degeneracy(second) or canary.difference(first, second)
    if problem:
        notebook.note(f"no canary with a picture: {problem}")
        return
    await notebook.learn(replace(notebook.memory, image_canary=first))
    notebook.note("its canary with a picture was recorded too")


def _must_be_proven(task: Assignment) -> bool:
    """A wake from level 1, which keeps the weights, is only compared with a canary that is recorded."""
    start, recorded = task.start, task.notebook.memory.canary is not None
    return recorded or start.unproven or start.from_depth is not Depth.SLEEPING


async def _prove(task: Assignment) -> None:
    """Let the canary judge a woken engine; raises EngineError when it must not serve."""
    expected, start = task.notebook.memory.canary, task.start
    if expected is None and start.unproven and not start.fresh and task.launcher_token is not None:
        raise EngineError("no canary is recorded for it, so nothing but a new process proves it.")
    if expected is None and start.repairing and len(task.service.devices) > 1:
        raise EngineError("no canary is recorded for it and it spans several devices; restart its container.")
    problem = await canary_problem(task.engine, task.service, task.notebook.memory)
    if start.from_depth is Depth.OFFLOADED and task.real_level_2 and expected is not None:
        await task.notebook.learn(_judged(task.notebook.memory, problem))
    if problem:
        raise EngineError(problem)


def _judged(memory: Memory, problem: str | None) -> Memory:
    """What a round trip through level 2 teaches about it."""
    if problem:
        return replace(memory, level_2_broken=problem)
    return replace(memory, level_2_round_trips=memory.level_2_round_trips + 1)


async def canary_problem(engine: Engine, service: Service, memory: Memory) -> str | None:
    """Why an engine fails its canary twice in a row, None when it passes; raises EngineError when it can't
    be asked.
    """
    expected = memory.canary
    problem = await _once_more(lambda: _canary_problem(engine, service, expected))
    seen = memory.image_canary
    if problem is None and seen is not None:
        problem = await _once_more(lambda: _image_problem(engine, service, seen))
    return problem


async def _image_problem(engine: Engine, service: Service, expected: canary.Answer) -> str | None:
    try:
        answer = await engine.ask_about_image(service.model)
    except CanaryUnavailableError as error:
        return str(error)
    return canary.degeneracy(answer) or canary.difference(expected, answer)


async def _once_more(ask: Callable[[], Awaitable[str | None]]) -> str | None:
    return await ask() and await ask()


async def _canary_problem(engine: Engine, service: Service, expected: canary.Answer | None) -> str | None:
    try:
        # Without a recorded one only garbage can be told, for which the text is enough.
        plain = expected is None or expected.kind == "plain"
        answer = await engine.ask_canary(service.task, service.model, plain)
    except CanaryUnavailableError as error:
        return str(error) if expected is not None else None
    problem = canary.degeneracy(answer)
    if problem is None and expected is not None:
        problem = canary.difference(expected, answer)
    return problem
