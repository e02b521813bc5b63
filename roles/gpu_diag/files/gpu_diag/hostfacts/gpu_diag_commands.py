"""Run a command or a function for a bounded time, and answer with a sentence where it fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What a command printed, or why there is nothing: ``problem`` is None when it ended with 0."""

    stdout: str
    problem: str | None


def run_bounded(command: Sequence[str], timeout_seconds: float) -> Outcome:
    """Run a command; one that hangs in the kernel (and can't be killed) is left behind, not waited for."""
    name = " ".join(command[:3])
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return Outcome("", f"{command[0]} is not installed")
    except OSError as error:
        return Outcome("", f"{command[0]} can't be run: {error.strerror}")
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return Outcome("", f"`{name}` did not answer within {timeout_seconds:g} s")
    if process.returncode == 0:
        return Outcome(stdout, None)
    said = (stderr.strip() or stdout.strip() or "no message").splitlines()[-1]
    return Outcome(stdout, f"`{name}` ended with status {process.returncode}: {said}")


def _abandon(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)


def bounded_all(functions: Sequence[Callable[[], T]], timeout_seconds: float) -> list[T | None]:
    """The functions' values, called all at once; None for one that did not end in time or raised an OSError.

    For calls into file systems: a network mount whose server is gone answers never.
    """
    results: list[T | None] = [None] * len(functions)

    def call(number: int) -> None:
        with contextlib.suppress(OSError):
            results[number] = functions[number]()

    workers = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(len(functions))]
    for worker in workers:
        worker.start()
    end = time.monotonic() + timeout_seconds
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    return results[:]


def bounded(function: Callable[[], T], timeout_seconds: float) -> T | None:
    """The function's value, or None when it has not ended in time or raised an OSError."""
    return bounded_all([function], timeout_seconds)[0]
