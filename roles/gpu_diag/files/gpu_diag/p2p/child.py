"""Run the plan in a child process: a hang, a crash or a lost GPU ends the child, never the tool."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from gpu_diag.devices.protocol import Device, DeviceLostError, Devices, How, NoDevicesError
from gpu_diag.exits import CouldNotRunError
from gpu_diag.p2p.plan import Step
from gpu_diag.p2p.probe import StepResult, run_steps
from gpu_diag.p2p.verdict import Ending

_KILL_SECONDS = 2.0
# Loading torch and starting CUDA on many GPUs.
_OPEN_SECONDS = 180.0


@dataclass(frozen=True)
class Offer:
    """What the devices are and can: asked once, in the child, before anything is planned."""

    devices: tuple[Device, ...]
    access: frozenset[tuple[int, int]]
    methods: tuple[How, ...]
    arena_words: int
    untested: tuple[str, ...] = ()


Opener = Callable[[], Devices]
Planner = Callable[[Offer], list[Step]]


@dataclass
class Run:
    """What a run brought: the offer (None where the devices could not be opened), the results and the
    ending."""

    offer: Offer | None
    results: list[StepResult]
    ending: Ending
    steps: list[Step]


def run_in_child(
    opener: Opener,
    planner: Planner,
    step_seconds: float,
    on_step: Callable[[int, int, Step], None],
) -> Run:
    """Open the devices, plan and run in a child that is killed when one step takes longer than the limit.

    Raises CouldNotRunError with the sentence where the devices can't be opened.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_work, args=(opener, planner, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        return _listen(ours, step_seconds, on_step)
    finally:
        ours.close()
        child.kill()
        # A child that hangs in the kernel can't be killed and is not waited for.
        child.join(_KILL_SECONDS)


def _listen(ours: Connection, step_seconds: float, on_step: Callable[[int, int, Step], None]) -> Run:
    run = Run(None, [], Ending("died"), [])
    current: Step | None = None
    while True:
        limit = step_seconds if run.offer is not None else _OPEN_SECONDS
        try:
            if not ours.poll(limit):
                run.ending = _hang(current, limit)
                return run
            kind, value = ours.recv()
        except (EOFError, OSError):
            run.ending = Ending("died", current, "The probe's process died while it tested this.")
            return run
        if kind == "refused":
            raise CouldNotRunError(str(value))
        if kind == "offer":
            run.offer, run.steps = value
        elif kind == "begin":
            current = run.steps[value]
            on_step(value, len(run.steps), current)
        elif kind == "result":
            run.results.append(value)
        elif kind == "lost":
            run.ending = Ending("lost", current, f"The run ended early: {value}.")
            return run
        else:
            run.ending = Ending("completed")
            return run


def _hang(step: Step | None, limit: float) -> Ending:
    if step is None:
        raise CouldNotRunError(f"the devices could not be opened within {limit:g} s: the driver may hang")
    pairs = ", ".join(f"{message.source}→{message.destination}" for message in step.messages)
    return Ending("hang", step, f"A copy ({step.mode}, {step.how}: {pairs}) did not end within {limit:g} s.")


def _work(opener: Opener, planner: Planner, theirs: Connection) -> None:
    try:
        devices = opener()
        offer = _offer(devices)
        steps = planner(offer)
    except NoDevicesError as error:
        theirs.send(("refused", str(error)))
        os._exit(0)
    theirs.send(("offer", (offer, steps)))
    with contextlib.suppress(BrokenPipeError):  # the parent has given up
        try:
            run_steps(
                devices,
                steps,
                lambda number, _: theirs.send(("begin", number)),
                lambda _, result: theirs.send(("result", result)),
            )
            theirs.send(("end", None))
        except DeviceLostError as error:
            theirs.send(("lost", str(error)))
    theirs.close()
    # Without the interpreter's own end: handlers of the parent must not run twice.
    os._exit(0)


def _offer(devices: Devices) -> Offer:
    count = range(len(devices.devices))
    access = {(a, b) for a in count for b in count if a != b and devices.peer_access(a, b)}
    methods, untested = tuple(devices.methods()), tuple(devices.untested())
    return Offer(tuple(devices.devices), frozenset(access), methods, devices.arena_words, untested)
