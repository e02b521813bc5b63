"""A load generator that costs little itself: raw HTTP/1.1 over kept-alive connections."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

import uvloop


def request(port: int, stream: bool = False, extra: str = "", model: str = "bench") -> bytes:
    """A chat request."""
    body = (
        f'{{"model": "{model}", "stream": {"true" if stream else "false"}, "messages": []{extra}}}'.encode()
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass
class Result:
    """What a run measured; times in seconds."""

    seconds: float = 0.0
    answers: int = 0
    failures: int = 0
    chunks: int = 0
    latencies: list[float] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        """A latency in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Client(asyncio.Protocol):
    """One connection that asks again and again until time is up."""

    transport: asyncio.Transport

    def __init__(
        self, wire: bytes, result: Result, end: float, once: bool, done: asyncio.Future[None]
    ) -> None:
        self._wire = wire
        self._result = result
        self._end = end
        self._once = once
        self._done = done
        self._buffer = b""
        self._left = -1
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""

        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """The other side has closed."""
        if not self._done.done():
            self._result.failures += 1
            self._done.set_result(None)

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._buffer, self._left = b"", -1
        self.transport.write(self._wire)

    def data_received(self, data: bytes) -> None:
        """Count chunks; see whether the answer is complete."""
        self._result.chunks += data.count(b"data: ")
        if self._left < 0:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                self._result.failures += 1
            found = head.find(b"content-length:")
            if found >= 0:
                length = int(head[found + 15 :].split(b"\r\n", 1)[0])
                self._left = length - (len(self._buffer) - end - 4)
            else:
                self._left = 1 << 60
                data = self._buffer
        else:
            self._left -= len(data)
        if self._left <= 0 or (self._left > 1 << 50 and data.endswith(b"0\r\n\r\n")):
            self._answered()

    def _answered(self) -> None:
        now = time.perf_counter()
        self._result.answers += 1
        self._result.latencies.append(now - self._asked)
        if self._once or now >= self._end:
            self._done.set_result(None)
            self.transport.close()
        else:
            self._ask()


async def _run(port: int, wire: bytes, connections: int, seconds: float, once: bool) -> Result:
    loop, result = asyncio.get_running_loop(), Result()
    began = time.perf_counter()
    done: list[asyncio.Future[None]] = [loop.create_future() for _ in range(connections)]
    for future in done:
        await loop.create_connection(
            lambda future=future: Client(wire, result, began + seconds, once, future),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
    await asyncio.gather(*done)
    result.seconds = time.perf_counter() - began
    return result


def run(port: int, wire: bytes, connections: int, seconds: float, once: bool = False) -> Result:
    """Ask over so many connections for so long (or once each), and return what was measured."""
    return uvloop.run(_run(port, wire, connections, seconds, once))


@contextmanager
def held_open(port: int, wire: bytes, connections: int) -> Iterator[None]:
    """Ask once over each of so many connections, don't read, and leave at the end."""
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(wire)
        yield
