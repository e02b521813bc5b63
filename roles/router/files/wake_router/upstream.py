"""Connections to engines for the data plane: HTTP/1.1, kept alive, one request at a time on each.

A general client costs more per request than everything else here together, so this one does only what a relay
needs: it writes a request as it came, and hands the answer's bytes on as they come. `engine` and `realtime`,
where speed is no matter, use aiohttp.
"""

from __future__ import annotations

import asyncio
from typing import IO, Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from wake_router.clock import Clock

KEEP_ALIVE_SECONDS: Final = 4.0
"""An idle connection is given up before vLLM does it (5 s), so that no request is sent into a closing one."""
ANSWER_HEAD_MAX_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 256 * 1024
_SWEEP_SECONDS: Final = 1.0
_BODILESS: Final = frozenset({204, 304})

Headers = list[tuple[bytes, bytes]]


class NotReachedError(Exception):
    """No connection to the engine: the request has not been sent."""


class BrokenOffError(Exception):
    """The engine took the request, and its connection ended before the answer did."""

    def __init__(self, reason: str, may_replay: bool = True) -> None:
        super().__init__(reason)
        self.may_replay = may_replay


class Sink(Protocol):
    """Where the pieces of an answer go at once."""

    def write(self, piece: bytes) -> bool:
        """Take a piece; False: no more until `Connection.resume` is called."""


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._writable = asyncio.Event()
        self._writable.set()
        self._head: asyncio.Future[None] | None = None
        self._end: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._sink: Sink | None = None
        self._head_bytes = 0
        self._reusable = False
        self._ends_with_connection = False
        self.last_byte_at = clock.monotonic()
        self.status = 0
        self.headers: Headers = []

    # ---- one request

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._head is None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes | IO[bytes] | None) -> None:
        """Send a request, wait for its answer's head; raises BrokenOffError."""
        loop = asyncio.get_running_loop()
        self._head, self._end = loop.create_future(), loop.create_future()
        self._head_bytes = 0
        self.last_byte_at = self._clock.monotonic()
        if isinstance(body, bytes) and len(body) < _PIECE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            await self._send(body)
        await self._head

    async def _send(self, body: bytes | IO[bytes] | None) -> None:
        if isinstance(body, bytes):
            self._transport.write(body)
        elif body is not None:
            with body:
                while piece := await asyncio.to_thread(body.read, _PIECE_BYTES):
                    if self._transport.is_closing():
                        return
                    self._transport.write(piece)
                    await self._writable.wait()

    async def stream(self, sink: Sink) -> bytes:
        """Hand the answer's pieces to a sink as they come, but return what came with its end.

        Raises BrokenOffError when the answer breaks off.
        """
        assert self._end is not None
        self._sink = sink
        self._flush()
        await self._end
        return self._take()

    async def read(self) -> bytes:
        """The whole answer; raises BrokenOffError when it breaks off."""
        assert self._end is not None
        await self._end
        return self._take()

    def resume(self) -> None:
        """The sink takes more again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self) -> bool:
        """The request is over; whether the connection may be used again. If not, it is closed: that is what
        tells vLLM to stop generating.
        """
        complete = self._end is not None and self._end.done() and self._end.exception() is None
        self._sink, self._head, self._end, self._pieces = None, None, None, []
        if complete and self._reusable and not self._transport.is_closing():
            self._transport.resume_reading()
            return True
        self.close()
        return False

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """The engine has been silent for too long."""
        self._fail(BrokenOffError("it sent nothing for too long", may_replay=False))
        self.close()

    def _take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _flush(self) -> None:
        if not self._pieces or self._sink is None or self._end is None or self._end.done():
            return
        if not self._sink.write(self._take()):
            self._transport.pause_reading()

    def _fail(self, error: BrokenOffError) -> None:
        for waiting in (self._head, self._end):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # whoever waits gets it all the same; nobody has to

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The engine has accepted."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse, and hand on at once what has come."""
        self.last_byte_at = self._clock.monotonic()
        if self._head is None:
            self.close()  # an answer to no request
            return
        if not self._head.done():
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(BrokenOffError(f"its answer is not valid HTTP: {error}", may_replay=False))
            self.close()
            return
        if not self._head.done() and self._head_bytes > ANSWER_HEAD_MAX_BYTES:
            self._fail(BrokenOffError("the head of its answer is too large", may_replay=False))
            self.close()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The engine has closed, or is gone."""
        self._writable.set()
        if self._ends_with_connection and error is None and self._end is not None and not self._end.done():
            self._end.set_result(None)
        self._fail(BrokenOffError(str(error) if error else "it closed the connection"))

    def pause_writing(self) -> None:
        """The engine takes no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """An answer begins."""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers, or of its trailers, which are for nobody."""
        if self._head is not None and not self._head.done():
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there; that of an interim answer (1xx) is skipped."""
        self.status = self._parser.get_status_code()
        if self.status >= 200 and self._head is not None and not self._head.done():
            names = {name for name, _ in self.headers}
            self._reusable = self._parser.should_keep_alive()
            self._ends_with_connection = self.status not in _BODILESS and names.isdisjoint(
                (b"content-length", b"transfer-encoding")
            )
            self._head.set_result(None)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The answer's last byte."""
        if self.status >= 200 and self._end is not None and not self._end.done():
            self._end.set_result(None)


class Pool:
    """All connections to all engines. Nothing limits them but the engines: requests must never wait here
    unseen.
    """

    def __init__(self, clock: Clock, connect_timeout_seconds: float, idle_timeout_seconds: float) -> None:
        self._clock = clock
        self._connect_timeout = connect_timeout_seconds
        self._idle_timeout = idle_timeout_seconds
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def connect(self, base_url: str) -> Connection:
        """A connection for one request, which ends with `release`; raises NotReachedError."""
        idle = self._idle.get(base_url)
        while idle:
            connection = idle.pop()
            age = self._clock.monotonic() - connection.last_byte_at
            if connection.usable and age < KEEP_ALIVE_SECONDS:
                self._busy.add(connection)
                return connection
            connection.close()
        connection = await self._open(base_url)
        self._busy.add(connection)
        return connection

    async def _open(self, base_url: str) -> Connection:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_for_ever())
        address = urlsplit(base_url)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._clock),
                    address.hostname or "",
                    address.port or 80,
                )
        except (OSError, TimeoutError) as error:
            raise NotReachedError(str(error)) from None
        return connection

    def release(self, base_url: str, connection: Connection) -> None:
        """The request on a connection is over."""
        self._busy.discard(connection)
        if connection.finish():
            self._idle.setdefault(base_url, []).append(connection)

    async def close(self) -> None:
        """End all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in [*self._busy, *(each for idle in self._idle.values() for each in idle)]:
            connection.close()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._idle_timeout / 4))
            now = self._clock.monotonic()
            for connection in list(self._busy):
                if now - connection.last_byte_at > self._idle_timeout:
                    connection.give_up()
            for base_url, idle in list(self._idle.items()):
                kept = [each for each in idle if now - each.last_byte_at < KEEP_ALIVE_SECONDS]
                for connection in idle:
                    if now - connection.last_byte_at >= KEEP_ALIVE_SECONDS:
                        connection.close()
                if kept:
                    self._idle[base_url] = kept
                else:
                    del self._idle[base_url]


def request_head(method: str, target: str, host: str, headers: Headers, size: int | None) -> bytes:
    """A request's line and headers as bytes; with a size, its Content-Length."""
    lines = [f"{method} {target} HTTP/1.1\r\nhost: {host}".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers]
    if size is not None:
        lines.append(b"content-length: %d" % size)
    return b"\r\n".join([*lines, b"", b""])
