"""A fast engine for measurements: a small JSON answer, or a stream of chunks, and vLLM's sleep routes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import cast

import uvloop

CHUNKS = 100
ANSWER = json.dumps({"id": "x", "object": "chat.completion", "choices": [], "padding": "y" * 430}).encode()
_DELTA = b'"choices":[{"index":0,"delta":{"content":" tok"}}]'
EVENT = b'data: {"id":"x","object":"chat.completion.chunk",' + _DELTA + b"}\n\n"
CHUNK = b"%x\r\n" % len(EVENT) + EVENT + b"\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STARTED = time.time()


class State:
    """Whether the engine sleeps; how long a wake takes (seconds); how often it was woken."""

    asleep = False
    wake_seconds = 0.0
    wakes = 0


def whole(body: bytes) -> bytes:
    """A complete answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


WHOLE_ANSWER = whole(ANSWER)


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""

        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            found = head.find(b"content-length:")
            length = int(head[found + 15 :].split(b"\r\n", 1)[0]) if found >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            target = self._buffer[:end].split(b" ", 2)[1]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(target, body)

    def _answer(self, target: bytes, body: bytes) -> None:
        if target.startswith(b"/v1/"):
            if b'"stream": true' in body or b'"stream":true' in body:
                self.transport.write(STREAM_HEAD)
                slow = b'"slow"' in body
                self._stream(CHUNKS, 1.0 if slow else 0.0)
            else:
                self.transport.write(WHOLE_ANSWER)
        elif target.startswith(b"/sleep"):
            State.asleep = True
            self.transport.write(whole(b""))
        elif target.startswith(b"/wake_up"):
            State.wakes += 1
            asyncio.get_running_loop().call_later(State.wake_seconds, self._woken)
        elif target.startswith(b"/is_sleeping"):
            self.transport.write(whole(json.dumps({"is_sleeping": State.asleep}).encode()))
        elif target.startswith(b"/bench/wake_seconds="):
            State.wake_seconds, State.wakes = float(target.split(b"=")[1]), 0
            self.transport.write(whole(b"{}"))
        elif target.startswith(b"/bench/wakes"):
            self.transport.write(whole(str(State.wakes).encode()))
        elif target.startswith(b"/metrics"):
            self.transport.write(whole(b"process_start_time_seconds %f\n" % STARTED))
        else:
            self.transport.write(whole(b"{}"))

    def _woken(self) -> None:
        State.asleep = False
        self.transport.write(whole(b""))

    def _stream(self, left: int, pause: float) -> None:
        if self.transport.is_closing():
            return
        if not left:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(CHUNK)
        asyncio.get_running_loop().call_later(pause, self._stream, left - 1, pause)


async def serve(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    print(os.getpid(), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
