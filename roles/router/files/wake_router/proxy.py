"""The data plane: one request to an engine, its answer back to the client chunk by chunk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from wake_router.openai_errors import AnswerError, engine_broke_off

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
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {b"date", b"server", b"x-request-id"}
_NO_AUTOMATIC_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

KEEP_ALIVE_SECONDS: Final = 4.0
"""An idle connection is given up before vLLM does it (5 s), so that no request is sent into a closing one."""


class NotReachedError(Exception):
    """No connection to the engine: the request has not been sent."""


class BrokenOffError(Exception):
    """The engine took the request, and its connection ended before an answer began."""


@dataclass(slots=True)
class Exchange:
    """One request of a client and what has been answered so far."""

    scope: Scope
    receive: Receive
    send: Send
    request_id: bytes
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    first_byte_at: float | None = None
    client_gone: bool = False
    finished: bool = False

    def header(self, name: bytes) -> str | None:
        """A header of the request by its lower-case name; the first one."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value).decode("latin-1")
        return None

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of the answer, with the request's id."""
        self.status = status
        headers = [*headers, (b"x-request-id", self.request_id), *self.extra_headers]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the body."""
        self.bytes_out += len(chunk)
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> None:
        """Send the last part of the body."""
        self.bytes_out += len(chunk)
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

    async def answer_error(self, error: AnswerError) -> None:
        """Send an error."""
        await self.answer(error.status, error.body(), error.headers)


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
    method: str,
    url: URL,
    body: bytes | None,
    clock: Callable[[], float],
) -> None:
    """Send a request and stream its answer back.

    Raises NotReachedError or BrokenOffError while nothing has been answered yet; afterwards a failure of the
    engine is told to the client inside the stream, or by an answer that visibly breaks off.
    """
    try:
        response = await session.request(
            method, url, data=body, headers=_headers_to_engine(exchange), allow_redirects=False
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReachedError(str(error)) from None
    except TimeoutError:
        raise BrokenOffError("it sent nothing for too long") from None
    except (aiohttp.ClientError, OSError) as error:
        raise BrokenOffError(str(error) or type(error).__name__) from None
    try:
        await _relay_answer(exchange, response, clock)
    finally:
        # Closing (not releasing) an answer that wasn't read to its end is what tells vLLM to stop generating.
        response.close() if not response.content.at_eof() else response.release()


async def _relay_answer(
    exchange: Exchange, response: aiohttp.ClientResponse, clock: Callable[[], float]
) -> None:
    event_stream = response.content_type == "text/event-stream"
    await exchange.start(response.status, _headers_to_client(response, event_stream))
    try:
        async for chunk in response.content.iter_any():
            if exchange.first_byte_at is None:
                exchange.first_byte_at = clock()
            await exchange.write(chunk)
    except (TimeoutError, aiohttp.ClientError, OSError):
        if not event_stream or response.headers.get("Content-Length"):
            # No last chunk follows: the server closes the connection, and the client sees that the answer is
            # cut.
            return
        model = exchange.scope.get("frontdoor.model", "")
        await exchange.finish(engine_broke_off(model).server_sent_event())
        return
    await exchange.finish()


def _headers_to_engine(exchange: Exchange) -> CIMultiDict[str]:
    raw = exchange.scope["headers"]
    dropped = _NOT_TO_ENGINE | _named_by_connection(raw)
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
    headers = [(key, value) for key, value in raw if key not in dropped]
    if event_stream:
        headers = [(key, value) for key, value in headers if key != b"x-accel-buffering"]
        headers.append((b"x-accel-buffering", b"no"))
    return headers
