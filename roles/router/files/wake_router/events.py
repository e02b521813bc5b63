"""What happens, as JSON lines on standard output and to whoever listens. Never content of requests."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from wake_router.clock import Clock

LISTENER_BACKLOG: Final = 1000
"""Events kept for a listener that is slow; what is older is dropped."""

RECENT_KEPT: Final = 100
"""Past events that a person can still look at. Requests aren't among them: they would push out the rest."""


class Events:
    """Writes events and hands them to listeners."""

    def __init__(self, clock: Clock, output: TextIO | None = None) -> None:
        self._clock = clock
        self._output = output if output is not None else sys.stdout
        self._listeners: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_KEPT)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event; `fields` must be JSON."""
        line = {"time": self._timestamp(), "event": event, **fields}
        self._output.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._output.flush()
        if event != "request":
            self.recent.append(line)
        self._hand_out(line)

    def close(self) -> None:
        """Tell listeners that nothing more will come."""
        self._hand_out(None)

    def _hand_out(self, line: dict[str, Any] | None) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(line)

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds")

    @contextmanager
    def listen(self) -> Iterator[Callable[[], Awaitable[dict[str, Any] | None]]]:
        """Within this context, awaiting a call of the result gives the next event, None at the end."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(LISTENER_BACKLOG)
        self._listeners.add(queue)
        try:
            yield queue.get
        finally:
            self._listeners.discard(queue)
