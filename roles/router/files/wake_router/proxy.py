"""The data plane: one request to an engine, its answer back to the client chunk by chunk."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from wake_router.openai_errors import AnswerError, engine_broke_off
from wake_router.tokens import BYTES_KEPT, CHUNKS_KEPT

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

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
_NO_AUTOMATIC_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

KEEP_ALIVE_SECONDS: Final = 4.0
"""An idle connection is given up before vLLM does it (5 s), so that no request is sent into a closing one."""


class NotReachedError(Exception):
    """No connection to the engine: the request has not been sent."""


class BrokenOffError(Exception):
    """The engine took the request, and its connection ended before an answer began."""

    def __init__(self, reason: str, may_replay: bool = True) -> None:
        super().__init__(reason)
        self.may_replay = may_replay


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
        self, status: int, body: bytes, headers: Headers = (), content_type: bytes = b""
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


def new_session(connect_timeout_seconds: float, idle_timeout_seconds: float) -> aiohttp.ClientSession:
    """The connection pool to all engines. Nothing limits it but the engines: requests must never wait in it
    unseen.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_seconds, sock_read=idle_timeout_seconds
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_NO_AUTOMATIC_HEADERS,
        trust_env=False,
    )


async def relay(
    session: aiohttp.ClientSession,
    exchange: Exchange,
    url: URL,
    body: bytes | IO[bytes] | None,
    clock: Callable[[], float],
    see: Callable[[bytes], None] | None = None,
) -> None:
    """Send a request and stream its answer back; `see` is shown the answer's first chunk.

    Raises NotReachedError or BrokenOffError while nothing has been answered yet; afterwards a failure of the
    engine is told to the client inside the stream, or by an answer that visibly breaks off.
    """
    try:
        response = await session.request(
            exchange.scope["method"],
            url,
            data=body,
            headers=_headers_to_engine(exchange),
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReachedError(str(error)) from None
    except TimeoutError:
        raise BrokenOffError("it sent nothing for too long", may_replay=False) from None
    except (aiohttp.ClientError, OSError) as error:
        raise BrokenOffError(str(error) or type(error).__name__) from None
    try:
        await _relay_answer(exchange, response, clock, see)
    finally:
        # Closing (not releasing) an answer that wasn't read to its end is what tells vLLM to stop generating.
        response.close() if not response.content.at_eof() else response.release()


async def _relay_answer(
    exchange: Exchange,
    response: aiohttp.ClientResponse,
    clock: Callable[[], float],
    see: Callable[[bytes], None] | None,
) -> None:
    event_stream = response.content_type == "text/event-stream"
    if exchange.status:
        if response.status != 200 or not event_stream:
            await exchange.finish(_as_last_event(await response.read()))
            return
    else:
        exchange.event_stream = event_stream
        await exchange.start(response.status, _headers_to_client(response, event_stream))
    try:
        async for chunk in response.content.iter_any():
            if exchange.first_byte_at is None:
                exchange.first_byte_at = clock()
                if see is not None:
                    see(chunk)
            if response.content.at_eof():
                await exchange.finish(chunk)
                return
            await exchange.write(chunk)
    except (TimeoutError, aiohttp.ClientError, OSError):
        if not event_stream or response.headers.get("Content-Length"):
            # No last chunk follows: the server closes the connection, and the client sees that the answer is
            # cut.
            return
        await exchange.finish(engine_broke_off(exchange.model).server_sent_event())
        return
    await exchange.finish()


def _as_last_event(body: bytes) -> bytes:
    """An engine's answer that isn't a stream, for a client whose stream has begun."""
    lines = body.decode("utf-8", "replace").splitlines() or [""]
    return ("event: error\n" + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


def _headers_to_engine(exchange: Exchange) -> CIMultiDict[str]:
    raw = exchange.scope["headers"]
    dropped = _NOT_TO_ENGINE | _named_by_connection(raw)
    if not exchange.keep_credentials:
        dropped |= _CREDENTIALS
    headers = CIMultiDict(
        (key.decode("latin-1"), value.decode("latin-1")) for key, value in raw if key not in dropped
    )
    headers["x-request-id"] = exchange.request_id.decode("latin-1")
    return headers


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Headers that the sender declares to be for the next hop only."""
    return frozenset(
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")
    )


def _headers_to_client(response: aiohttp.ClientResponse, event_stream: bool) -> list[tuple[bytes, bytes]]:
    raw = [(key.lower(), value) for key, value in response.raw_headers]
    dropped = _NOT_TO_CLIENT | _named_by_connection(raw)
    headers = [
        (key, value) for key, value in raw if key not in dropped and not key.startswith(b"access-control-")
    ]
    if event_stream:
        headers = [(key, value) for key, value in headers if key != b"x-accel-buffering"]
        headers.append((b"x-accel-buffering", b"no"))
    return headers
