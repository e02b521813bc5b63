"""The data plane: one request to an engine, its answer back to the client chunk by chunk."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

from wake_router.http_protocol import OUTLET, Outlet
from wake_router.openai_errors import AnswerError, engine_broke_off
from wake_router.tokens import BYTES_KEPT, CHUNKS_KEPT
from wake_router.upstream import BrokenOffError, Connection, Headers, Pool, request_head

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_TO_ENGINE: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id", b"prefer"}
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {b"date", b"server", b"x-request-id"}


@dataclass(slots=True)
class Exchange:
    """One request of a client and what has been answered so far."""

    scope: Scope
    receive: Receive
    send: Send
    request_id: bytes
    task: asyncio.Task[Any]
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    first_byte_at: float | None = None
    client_gone: bool = False
    cut_reason: str | None = None
    event_stream: bool = False
    finished: bool = False
    keep_credentials: bool = True
    """Whether the client's credentials are for the engine (the router itself needs none)."""
    model: str = ""
    """The model that it is for, as its engine knows it."""
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=CHUNKS_KEPT))
    """The end of the answer so far, where engines report their usage."""

    @property
    def outlet(self) -> Outlet:
        """The short cut to its client."""
        outlet: Outlet = self.scope["extensions"][OUTLET]
        return outlet

    def header(self, name: bytes) -> str | None:
        """A header of the request by its lower-case name; the first one."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value).decode("latin-1")
        return None

    def cut(self, reason: str) -> None:
        """Stop working on it; the answer, if it has begun, is to be ended visibly."""
        if not self.finished and self.cut_reason is None:
            self.cut_reason = reason
            self.task.cancel()

    def leave(self) -> None:
        """The client is gone: nobody is there for whom to work."""
        if not self.finished:
            self.client_gone = True
            self.task.cancel()

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of the answer, with the request's id."""
        self.status = status
        headers = [*headers, (b"x-request-id", self.request_id), *self.extra_headers]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the body."""
        self.bytes_out += len(chunk)
        self.tail.append(chunk[-BYTES_KEPT:])
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> None:
        """Send the last part of the body."""
        self.bytes_out += len(chunk)
        self.tail.append(chunk[-BYTES_KEPT:])
        self.finished = True
        await self.send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def answer(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (), content_type: bytes = b""
    ) -> None:
        """Send a whole answer, JSON by default."""
        head = [
            (b"content-type", content_type or b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ]
        await self.start(status, head)
        await self.finish(body)

    async def answer_json(self, document: Any) -> None:
        """Send a whole answer with 200."""
        await self.answer(200, json.dumps(document).encode())

    async def answer_error(self, error: AnswerError) -> None:
        """Send an error; in a stream that has begun, as its last event."""
        if self.status:
            await self.finish(error.server_sent_event())
        else:
            await self.answer(error.status, error.body(), error.headers)

    async def start_event_stream(self) -> None:
        """Begin a stream before its engine does."""
        if not self.status:
            self.event_stream = True
            await self.start(200, [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")])


class _Pieces:
    """Hands an engine's pieces to the client at once, and slows the engine down to the client's pace."""

    __slots__ = ("_clock", "_exchange", "_keep", "_see", "_write")

    def __init__(self, exchange: Exchange, clock: Callable[[], float], see: Callable[[bytes], None] | None):
        self._exchange = exchange
        self._clock = clock
        self._see = see
        self._write = exchange.outlet.write
        self._keep = exchange.tail.append

    def note(self, piece: bytes) -> None:
        """A piece has come; of the first one more is known."""
        if piece and self._exchange.first_byte_at is None:
            self._exchange.first_byte_at = self._clock()
            if self._see is not None:
                self._see(piece)

    def write(self, piece: bytes) -> bool:
        """Pass a piece on; False: the client has to catch up first."""
        self.note(piece)
        self._exchange.bytes_out += len(piece)
        self._keep(piece[-BYTES_KEPT:])
        return self._write(piece)


async def relay(
    pool: Pool,
    exchange: Exchange,
    base_url: str,
    target: str,
    body: bytes | IO[bytes],
    size: int,
    clock: Callable[[], float],
    see: Callable[[bytes], None] | None = None,
) -> None:
    """Send a request and stream its answer back; `see` is shown the answer's first piece.

    Raises NotReachedError or BrokenOffError while nothing has been answered yet; afterwards a failure of the
    engine is told to the client inside the stream, or by an answer that visibly breaks off.
    """
    connection = await pool.connect(base_url)
    try:
        method = "GET" if exchange.scope["method"] == "HEAD" else exchange.scope["method"]
        declared = size if size or method != "GET" else None
        host = base_url.removeprefix("http://")
        await connection.ask(request_head(method, target, host, _headers_to_engine(exchange), declared), body)
        await _relay_answer(exchange, connection, _Pieces(exchange, clock, see))
    finally:
        exchange.outlet.when_room = None
        pool.release(base_url, connection)


async def _relay_answer(exchange: Exchange, connection: Connection, pieces: _Pieces) -> None:
    event_stream = _is_event_stream(connection.headers)
    if exchange.status:
        if connection.status != 200 or not event_stream:
            await exchange.finish(_as_last_event(await _read(exchange, connection)))
            return
    else:
        exchange.event_stream = event_stream
        await exchange.start(connection.status, _headers_to_client(connection.headers, event_stream))
    exchange.outlet.when_room = connection.resume
    try:
        last = await connection.stream(pieces)
    except BrokenOffError:
        if event_stream and not any(name == b"content-length" for name, _ in connection.headers):
            await exchange.finish(engine_broke_off(exchange.model).server_sent_event())
        # Otherwise no last chunk follows: the server closes the connection, and the client sees that the
        # answer is cut.
        return
    pieces.note(last)
    await exchange.finish(last)


async def _read(exchange: Exchange, connection: Connection) -> bytes:
    try:
        return await connection.read()
    except BrokenOffError:
        return engine_broke_off(exchange.model).body()


def _is_event_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name == b"content-type":
            return value.partition(b";")[0].strip().lower() == b"text/event-stream"
    return False


def _as_last_event(body: bytes) -> bytes:
    """An engine's answer that isn't a stream, for a client whose stream has begun."""
    lines = body.decode("utf-8", "replace").splitlines() or [""]
    return ("event: error\n" + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


def _headers_to_engine(exchange: Exchange) -> Headers:
    raw = exchange.scope["headers"]
    dropped = _NOT_TO_ENGINE | _named_by_connection(raw)
    if not exchange.keep_credentials:
        dropped |= _CREDENTIALS
    headers = [(name, value) for name, value in raw if name not in dropped]
    headers.append((b"x-request-id", exchange.request_id))
    return headers


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Headers that the sender declares to be for the next hop only."""
    return frozenset(
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")
    )


def _headers_to_client(raw: Headers, event_stream: bool) -> Headers:
    dropped = _NOT_TO_CLIENT | _named_by_connection(raw)
    headers = [
        (name, value)
        for name, value in raw
        if name not in dropped and not name.startswith(b"access-control-")
    ]
    if event_stream:
        headers = [(name, value) for name, value in headers if name != b"x-accel-buffering"]
        headers.append((b"x-accel-buffering", b"no"))
    return headers
