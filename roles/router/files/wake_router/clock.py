"""Time, handed in: what decides never asks for the time itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the router gets the time from."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; for every duration and deadline."""

    def wall(self) -> float:
        """Seconds since 1970; only for what people read (logs, `created` fields)."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()


def spoken(seconds: float) -> str:
    """A span of time in words for people: 42 s, 17 min, 3 h. Less than none is none."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
