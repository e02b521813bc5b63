"""uvicorn's HTTP/1.1 protocol, stricter: plain paths, one way to read where a request ends, heads of bounded
size, upgrades only to a websocket that there is; and its own errors are JSON too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from wake_router.openai_errors import AnswerError, bad_request, head_too_large, head_too_slow
from wake_router.surface import REALTIME

HEAD_MAX_BYTES: Final = 64 * 1024
"""Of a request's line and headers; also of what may come between two pieces of a body."""
HEAD_SECONDS: Final = 60.0
"""From a connection's opening, or a head's first byte, until that head must be complete."""
UNREAD_MAX_BYTES: Final = 128 * 1024 * 1024
"""Of a body that comes after its answer: it is thrown away, so that the client gets to read the answer."""
LINGER_SECONDS: Final = 5.0
"""The same, where the connection ends with the answer: closing at once would reset it under a client that
still sends, and take the answer away."""

_NO_SUCH_TARGET: Final = b"/-"
"""Stands for every request target that isn't a plain path; nothing is served there."""
_REALTIME_PATH: Final = REALTIME.path.encode()
_PHRASES: Final = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class _UnusableHeadError(Exception):
    """Ends the parser's work on a request."""


class _LingeringTransport:
    """What an answer is written to when the connection ends with it."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class Outlet:
    """A short cut to one request's client: pieces of an answer that has begun are written without a coroutine
    for each, and somebody is told when the client leaves. Applications find it in the scope's extensions.
    """

    __slots__ = ("_cycle", "_protocol", "when_gone", "when_room")

    def __init__(self, protocol: PublicProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self.when_gone: Callable[[], None] | None = None
        self.when_room: Callable[[], None] | None = None

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Call once when the client leaves before its answer is complete, which may be so already."""
        self.when_gone = when_gone
        self._protocol.flow.resume_reading()
        if self._cycle.disconnected:
            self.gone()

    def gone(self) -> None:
        """The client has left."""
        when_gone, self.when_gone = self.when_gone, None
        self._cycle.disconnected = True
        if when_gone is not None:
            when_gone()

    @property
    def complete(self) -> bool:
        """Whether the answer's last byte is written."""
        return self._cycle.response_complete

    def write(self, piece: bytes) -> bool:
        """Write a piece; False: no more until `when_room` is called. An empty one is no end."""
        cycle = self._cycle
        if not piece or cycle.disconnected or cycle.scope["method"] == "HEAD":
            return True
        if cycle.chunked_encoding:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            cycle.expected_content_length -= len(piece)
            cycle.transport.write(piece)
        return not self._protocol.flow.write_paused


OUTLET: Final = "frontdoor.outlet"
"""Its name among the extensions."""


class PublicProtocol(HttpToolsProtocol):
    """One connection of a client."""

    _refusal: AnswerError | None = None
    _in_head = True
    _in_body = False
    _deaf = False
    _head_bytes = 0
    _since_progress = 0
    _unread = 0
    _is_websocket = False
    _outlets: tuple[Outlet, ...] = ()
    _timer: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """A client that never asks isn't waited for."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_waiting()
        super().connection_lost(exc)
        for outlet in self._outlets:
            outlet.gone()
        self._outlets = ()

    def resume_writing(self) -> None:
        """There is room again for what the client reads."""
        super().resume_writing()
        for outlet in self._outlets:
            if outlet.when_room is not None:
                outlet.when_room()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what makes no progress for too many bytes is refused."""
        if self._deaf:
            return
        self._since_progress += len(data)
        super().data_received(data)
        if self._since_progress > HEAD_MAX_BYTES and not self._deaf:
            self._refusal = head_too_large(HEAD_MAX_BYTES)
            self.send_400_response("")

    def handle_websocket_upgrade(self) -> None:
        """The connection isn't HTTP any longer."""
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._since_progress:
            self.transport.close()  # it never asked
            return
        self._refusal = head_too_slow(HEAD_SECONDS)
        self.send_400_response("")

    # ---- the head

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_head, self._is_websocket = True, False
        self._head_bytes = self._unread = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers are dropped: nothing that the head has decided may change afterwards."""
        if self._in_head:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_MAX_BYTES:
            self._refuse(head_too_large(HEAD_MAX_BYTES))

    def _refuse(self, error: AnswerError) -> None:
        self._refusal = error
        raise _UnusableHeadError

    def on_headers_complete(self) -> None:
        """Absolute and authority targets, `*` and fragments are for proxies and mistakes: 404."""
        self._in_head, self._in_body, self._since_progress = False, True, 0
        self._stop_waiting()
        self._check_framing()
        if not self.url.startswith(b"/") or self.url.startswith(b"//") or b"#" in self.url:
            self.url = _NO_SUCH_TARGET
        wants_upgrade = self.parser.should_upgrade()
        self._is_websocket = wants_upgrade and self._is_handshake()
        super().on_headers_complete()
        if not self._is_websocket:
            outlet = Outlet(self, self.cycle)
            self.scope["extensions"] = {OUTLET: outlet}  # type: ignore[dict-item]
            self._outlets = (*(each for each in self._outlets if not each.complete), outlet)
        if wants_upgrade and not self._is_websocket:
            self.cycle.keep_alive = False  # the parser takes what follows for another protocol
        if not self._is_websocket and not self.cycle.keep_alive:
            lingering = _LingeringTransport(self.transport, self._close)
            self.cycle.transport = cast(asyncio.Transport, lingering)

    def _check_framing(self) -> None:
        """What the parser lets pass although another one may read it otherwise (RFC 9112, 3.2 and 6.1)."""
        version = self.parser.get_http_version()
        hosts = [value for name, value in self.headers if name == b"host"]
        if version not in ("1.0", "1.1"):
            self._refuse(bad_request("This is not a valid HTTP request: its version must be 1.1 or 1.0."))
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if len(hosts) > 1 or (not hosts and version != "1.0"):
            self._refuse(bad_request("This is not a valid HTTP request: it must have exactly one Host."))
        if codings and (codings != [b"chunked"] or version == "1.0"):
            self._refuse(
                bad_request("This is not a valid HTTP request: the only Transfer-Encoding is chunked.")
            )

    # ---- the body

    def on_body(self, body: bytes) -> None:
        """A piece of the body, for the application or, after the answer, for nobody."""
        self._since_progress = 0
        if self.cycle is not None and self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > UNREAD_MAX_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request's last byte."""
        self._in_body, self._since_progress = False, 0
        super().on_message_complete()

    # ---- websockets

    def _should_upgrade(self) -> bool:
        return self._is_websocket

    def _is_handshake(self) -> bool:
        """Whether the websocket server would accept this head; otherwise it is a request like any other."""
        if self._get_upgrade() != b"websocket" or self.url.partition(b"?")[0] != _REALTIME_PATH:
            return False
        trial = cast(type[WebSocketsSansIOProtocol], self.ws_protocol_class)(
            config=self.config, server_state=self.server_state, app_state={}
        ).conn
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers]
        trial.receive_data(b"\r\n".join([*lines, b"", b""]))
        events = trial.events_received()
        return bool(events and isinstance(events[0], Request) and trial.accept(events[0]).status_code == 101)

    # ---- errors

    def send_400_response(self, msg: str) -> None:
        """Answer what isn't HTTP in OpenAI's shape; only close where another answer is due or under way."""
        error = self._refusal or bad_request(f"This is not a valid HTTP request: {msg}")
        if not self._may_answer():
            self.transport.close()
        elif not self.transport.is_closing():
            self._in_body = True  # or whatever else it may be that still comes
            self._tell_application_that_it_is_over()
            self.transport.write(_as_http(error))
            self._close()

    def _tell_application_that_it_is_over(self) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()

    def _close(self) -> None:
        """Close, but first let the client finish a body that nobody reads."""
        self._stop_waiting()
        if not self._in_body:
            self.transport.close()
        elif not self._deaf:
            self._deaf = True
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def _may_answer(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return not self._in_body
        return cycle.more_body and not cycle.response_started and not self.pipeline


def _as_http(error: AnswerError) -> bytes:
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status} {_PHRASES[error.status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
