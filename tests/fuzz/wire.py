"""Bytes on a socket, and what comes back, read strictly."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable

from tests.standin.processes import Router

QUIET_SECONDS = 0.05
"""So long nothing may come before the client says that it has nothing more to say; only then all is read."""
GIVE_UP_SECONDS = 20.0


def talk(router: Router, *pieces: bytes, quiet: float = QUIET_SECONDS) -> bytes:
    """Send pieces one after the other; everything that comes back until the router closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", router.port), timeout=GIVE_UP_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
            connection.settimeout(quiet)
            answer += _read(connection)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(GIVE_UP_SECONDS)
            answer += _read(connection)
        except OSError:
            pass  # a closed connection is an answer too; what came before it counts
    return answer


def _read(connection: socket.socket) -> bytes:
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except TimeoutError:
        pass  # nothing more for now: the caller decides whether that is the end
    except ConnectionError:
        pass  # cut; what came before it counts
    return got


def answers(raw: bytes, heads_only: bool = False) -> list[tuple[int, bytes]]:
    """Statuses and bodies of everything that came back; fails where it isn't HTTP to the last byte."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        assert end, head
        status_line, *lines = head.split(b"\r\n")
        assert status_line.startswith(b"HTTP/1.1 "), head
        status = int(status_line.split()[1])
        if status == 100:
            continue
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        size = 0 if heads_only or status == 204 else int(headers[b"content-length"])
        assert len(raw) >= size, "an answer that breaks off"
        found.append((status, raw[:size]))
        raw = raw[size:]
    return found


def assert_refused(status: int, body: bytes) -> None:
    """A 4xx in OpenAI's shape."""
    assert 400 <= status < 500, (status, body)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]


def assert_all_refused(raw: bytes) -> list[int]:
    """Every answer is a refusal, or there is none since the connection was closed; the statuses."""
    found = answers(raw)
    for status, body in found:
        assert_refused(status, body)
    return [status for status, _ in found]


def post(
    body: bytes,
    target: bytes = b"/v1/chat/completions",
    headers: Iterable[bytes] | None = None,
    version: bytes = b"HTTP/1.1",
    method: bytes = b"POST",
) -> bytes:
    """A request as bytes; the usual headers when none are given."""
    if headers is None:
        headers = [b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([method + b" " + target + b" " + version, *headers, b"", b""]) + body
