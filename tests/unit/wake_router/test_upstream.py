"""Connections to engines: what comes back, and what breaks off."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from wake_router import upstream
from wake_router.clock import SystemClock
from wake_router.upstream import BrokenOffError, Connection, NotReachedError, Pool, request_head

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = request_head("POST", "/x", "engine", [(b"a", b"b")], 2)


@asynccontextmanager
async def engine(answering: Answering) -> AsyncIterator[str]:
    """A server that does what it is told; its address."""
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


@asynccontextmanager
async def asked(
    answer: bytes, *, idle_seconds: float = 60.0, stays: bool = False
) -> AsyncIterator[Connection]:
    """A connection that has sent one request and got these bytes back; then the engine closes, or stays."""

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(HEAD) + 2)
        writer.write(answer)
        if stays:
            await reader.read()
        writer.close()

    pool = Pool(SystemClock(), 5.0, idle_seconds)
    async with engine(answering) as url:
        connection = await pool.connect(url)
        try:
            await connection.ask(HEAD, b"{}")
            yield connection
        finally:
            pool.release(url, connection)
            await pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-B: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 103 Early\r\nX-B: 2\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
async def test_answers(answer: bytes) -> None:
    async with asked(answer) as connection:
        assert connection.status == 200
        assert connection.headers[0] == (b"x-a", b"1")
        assert (b"x-b", b"2") not in connection.headers
        assert await connection.read() == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno size",
    ],
)
async def test_answers_that_break_off(answer: bytes) -> None:
    async with asked(answer) as connection:
        with pytest.raises(BrokenOffError):
            await connection.read()


@pytest.mark.parametrize(
    ("answer", "may_replay"),
    [
        (b"", True),
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"SSH-2.0-x\r\n", False),
        (b"HTTP/1.1 200 OK\r\nX: ", True),
    ],
)
async def test_no_answer(answer: bytes, may_replay: bool) -> None:
    with pytest.raises(BrokenOffError) as error:
        async with asked(answer):
            pass
    assert error.value.may_replay is may_replay


async def test_a_head_without_end() -> None:
    with pytest.raises(BrokenOffError, match="too large"):
        async with asked(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000, stays=True):
            pass


async def test_a_silent_engine_is_given_up() -> None:
    with pytest.raises(BrokenOffError, match="too long") as error:
        async with asked(b"", idle_seconds=0.2, stays=True):
            pass
    assert error.value.may_replay is False


async def test_nobody_listens() -> None:
    async with engine(lambda reader, writer: asyncio.sleep(0)) as url:
        pass
    with pytest.raises(NotReachedError):
        await Pool(SystemClock(), 5.0, 60.0).connect(url)


async def test_a_large_body_and_a_file_arrive_whole() -> None:
    got: list[bytes] = []
    content = bytes(range(256)) * 8192

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            got.append(await reader.readexactly(len(content)))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    pool = Pool(SystemClock(), 5.0, 60.0)
    async with engine(answering) as url:
        used = []
        for body in (content, io.BytesIO(content)):
            connection = await pool.connect(url)
            await connection.ask(request_head("POST", "/x", "engine", [], len(content)), body)
            assert await connection.read() == b""
            pool.release(url, connection)
            used.append(connection)
        await pool.close()
    assert got == [content, content]
    assert used[0] is used[1], "a connection in order is used again"


async def test_what_is_not_in_order_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    pool = Pool(SystemClock(), 5.0, 60.0)
    async with engine(answering) as url:
        unread = await pool.connect(url)
        await unread.ask(HEAD, b"{}")
        unread.give_up()
        pool.release(url, unread)
        complete = await pool.connect(url)
        assert complete is not unread
        await complete.ask(HEAD, b"{}")
        await complete.read()
        pool.release(url, complete)
        monkeypatch.setattr(upstream, "KEEP_ALIVE_SECONDS", 0.0)
        assert await pool.connect(url) is not complete, "it has been idle for too long"
        await pool.close()


class SlowSink:
    """Takes one piece, and then no more until told."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def write(self, piece: bytes) -> bool:
        """Take it, and ask for a pause."""
        self.taken.append(piece)
        return False


async def test_a_slow_client_slows_the_engine_down() -> None:
    written = 0

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readexactly(len(HEAD) + 2)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")
        for _ in range(64):
            writer.write(b"x" * 1048576)
            await writer.drain()
            written += 1

    pool, sink = Pool(SystemClock(), 5.0, 60.0), SlowSink()
    async with engine(answering) as url:
        connection = await pool.connect(url)
        await connection.ask(HEAD, b"{}")
        streaming = asyncio.create_task(connection.stream(sink))
        await asyncio.sleep(0.3)
        assert len(sink.taken) <= 2
        assert written < 64, "most of it is still with the engine"
        while not streaming.done():
            connection.resume()
            await asyncio.sleep(0)
        last = streaming.result()
        assert sum(map(len, sink.taken)) + len(last) == 67108864
        pool.release(url, connection)
        await pool.close()
