"""What the public listener makes of a connection's bytes and silences."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from wake_router import http_protocol
from wake_router.http_protocol import PublicProtocol


async def tell_headers(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer with the names of the headers."""
    while scope["path"] != "/at-once" and (await receive()).get("more_body"):
        continue
    body = json.dumps([name.decode() for name, _ in scope["headers"]]).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection to a server with this protocol."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(tell_headers, http=PublicProtocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def test_trailers_are_no_headers() -> None:
    async with connected() as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
        )
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        assert json.loads(body) == ["host", "connection", "transfer-encoding"]


async def test_a_head_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    async with connected() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_never_asks_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    async with connected() as (reader, _writer):
        assert await reader.read() == b""


async def test_a_pause_after_an_answer_is_no_slow_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(request)
            assert (await reader.readuntil(b'["host"]')).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.4)


async def test_a_client_that_still_sends_gets_its_answer() -> None:
    """And then the end, although it has not come to its own."""
    async with connected() as (reader, writer):
        writer.write(
            b"POST /at-once HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n"
        )
        writer.write(b"x" * 5000)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"x" * 1000)
        await writer.drain()
        assert (await reader.read()).endswith(b"]")


async def test_nothing_is_said_in_the_middle_of_an_answer() -> None:
    """A broken body after its own answer is no request that could be answered."""
    async with connected() as (reader, writer):
        writer.write(b"POST /at-once HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"]")
        writer.write(b"no size\r\n")
        assert await reader.read() == b""
