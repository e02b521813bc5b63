"""Websockets to an engine: found by the model's name, relayed in both directions, a lease while they are
open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

import aiohttp
from yarl import URL

from wake_router.model_name import UnusableBodyError, find_model
from wake_router.proxy import Message, Receive, Scope, Send

FIRST_MESSAGE_SECONDS: Final = 10.0
FIRST_MESSAGES_MAX: Final = 4
MESSAGE_MAX_BYTES: Final = 16 * 1024 * 1024

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013


class SocketClosedError(Exception):
    """The client has closed the socket."""


@dataclass(slots=True)
class Greeting:
    """The model that a client named, and the messages that it had sent by then."""

    model: str
    messages: list[Message]
    name_in_query: bool


async def greet(scope: Scope, receive: Receive, send: Send) -> Greeting:
    """Accept a socket and wait until the client names a model, in the query or in one of its first messages.

    Raises UnusableBodyError when it doesn't, SocketClosedError when it leaves.
    """
    message = await receive()
    if message["type"] != "websocket.connect":
        raise SocketClosedError
    await send({"type": "websocket.accept"})
    named = parse_qs(scope["query_string"].decode("latin-1")).get("model")
    if named:
        return Greeting(named[0], [], True)
    messages: list[Message] = []
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            while len(messages) < FIRST_MESSAGES_MAX:
                message = await _next(receive)
                messages.append(message)
                model = _model_in(message)
                if model is not None:
                    return Greeting(model, messages, False)
    except TimeoutError:
        raise UnusableBodyError("No message named a model in time.", "model") from None
    raise UnusableBodyError("The first messages name no model.", "model")


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "websocket.disconnect":
        raise SocketClosedError
    return message


def _model_in(message: Message) -> str | None:
    try:
        document = json.loads(message.get("text") or message.get("bytes") or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    session = document.get("session")
    for holder in (document, session if isinstance(session, dict) else {}):
        if isinstance(holder.get("model"), str):
            return str(holder["model"])
    return None


def with_model(message: Message, model: str) -> str | bytes:
    """A client's message with the name that the engine knows."""
    content: str | bytes = message.get("text") or message.get("bytes") or b""
    raw = content.encode() if isinstance(content, str) else content
    try:
        named = find_model(raw).with_model(model)
    except UnusableBodyError:
        document = json.loads(raw)
        if not isinstance(document, dict) or not isinstance(document.get("session"), dict):
            return content
        document["session"]["model"] = model
        named = json.dumps(document).encode()
    return named.decode() if isinstance(content, str) else named


@dataclass(slots=True)
class Relay:
    """One open socket to an engine."""

    receive: Receive
    send: Send
    idle_seconds: float
    now: Callable[[], float]
    bytes_in: int = 0
    bytes_out: int = 0
    last_message: float = 0.0

    async def run(self, session: aiohttp.ClientSession, url: URL, greeting: Greeting, model: str) -> int:
        """Relay until one side closes or nothing has been said for too long; returns the code to close with.

        Raises aiohttp.ClientError when the engine can't be reached.
        """
        self.last_message = self.now()
        async with session.ws_connect(url, max_msg_size=MESSAGE_MAX_BYTES, autoping=True) as engine:
            for message in greeting.messages:
                await _send_to_engine(engine, with_model(message, model))
            directions = [
                asyncio.create_task(self._from_client(engine)),
                asyncio.create_task(self._from_engine(engine)),
                asyncio.create_task(self._idle()),
            ]
            try:
                done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
                return next(iter(done)).result()
            finally:
                for direction in directions:
                    direction.cancel()

    async def _from_client(self, engine: aiohttp.ClientWebSocketResponse) -> int:
        while True:
            message = await self.receive()
            if message["type"] == "websocket.disconnect":
                return NORMAL
            self.last_message = self.now()
            content = message.get("text")
            content = message.get("bytes") or b"" if content is None else content
            self.bytes_in += len(content)
            await _send_to_engine(engine, content)

    async def _from_engine(self, engine: aiohttp.ClientWebSocketResponse) -> int:
        async for message in engine:
            self.last_message = self.now()
            if message.type is aiohttp.WSMsgType.TEXT:
                self.bytes_out += len(message.data)
                await self.send({"type": "websocket.send", "text": message.data})
            elif message.type is aiohttp.WSMsgType.BINARY:
                self.bytes_out += len(message.data)
                await self.send({"type": "websocket.send", "bytes": message.data})
        code = engine.close_code
        return INTERNAL_ERROR if code is None or code == 1006 else code

    async def _idle(self) -> int:
        left = self.idle_seconds
        while left > 0:
            await asyncio.sleep(left)
            left = self.last_message + self.idle_seconds - self.now()
        return GOING_AWAY


async def _send_to_engine(engine: aiohttp.ClientWebSocketResponse, content: str | bytes) -> None:
    if isinstance(content, str):
        await engine.send_str(content)
    else:
        await engine.send_bytes(content)


def error_message(document: dict[str, Any]) -> Message:
    """An error as the realtime protocol tells it."""
    return {"type": "websocket.send", "text": json.dumps({"type": "error", **document})}
