"""The public listener: finds the route, lets in who may enter, answers what the router itself knows, and
accounts.

A plain ASGI application, since a web framework's routing costs nearly half of the throughput of small
requests.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any, Final

from wake_router.access import Gate, Key, Origins
from wake_router.clock import Clock
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.forwarding import Account, ClientGoneError, Forwarder
from wake_router.lifecycle import ServiceState
from wake_router.metrics import Metrics
from wake_router.openai_errors import AnswerError, model_not_found, router_failed
from wake_router.proxy import Exchange, Receive, Scope, Send
from wake_router.registry import Service
from wake_router.surface import HEALTH_PATH, Route, Where, find_route
from wake_router.tokens import reported_tokens

_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")
CLIENT_CLOSED_REQUEST: Final = 499
"""What the log calls a request whose client has left; nobody is sent it."""


class PublicApi:
    """The ASGI application of the public listener."""

    def __init__(
        self,
        executor: Executor,
        forwarder: Forwarder,
        gate: Gate,
        origins: Origins,
        clock: Clock,
        events: Events,
        metrics: Metrics,
    ) -> None:
        self._executor = executor
        self._forwarder = forwarder
        self._gate = gate
        self._origins = origins
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._created = int(clock.wall())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or websocket."""
        task = asyncio.current_task()
        assert task is not None
        exchange = Exchange(scope, receive, send, _request_id(scope), task)
        account = Account(self._clock.monotonic())
        if scope["type"] == "websocket":
            await self._answer_socket(exchange, account)
            return
        exchange.extra_headers += self._origins.headers(exchange.header(b"origin"))
        try:
            await self._answer(exchange, account)
        except AnswerError as error:
            account.error = error.code or error.type
            await exchange.answer_error(error)
        except ClientGoneError:
            account.error = "client_gone"
        except Exception as error:
            account.error = "internal_error"
            self._events.emit("internal_error", error=repr(error))
            if not exchange.status:
                await exchange.answer_error(router_failed())
            raise
        finally:
            self._account(exchange, account)

    async def _answer(self, exchange: Exchange, account: Account) -> None:
        scope = exchange.scope
        method = scope["method"]
        if method == "OPTIONS" and await self._answer_preflight(exchange):
            return
        route = find_route(method, scope["path"], scope["raw_path"])
        key = None if route.where is Where.HEALTH else self._identify(exchange, account)
        if key is None:
            await self._answer_route(exchange, account, route)
            return
        self._gate.enter(key, self._clock.monotonic())
        try:
            await self._answer_route(exchange, account, route)
        finally:
            self._gate.leave(key)

    def _identify(self, exchange: Exchange, account: Account) -> Key | None:
        if self._gate.is_open:
            return None
        exchange.keep_credentials = False
        key = self._gate.identify(exchange.header(b"authorization"), exchange.header(b"x-api-key"))
        account.key = key.name if key is not None else None
        return key

    async def _answer_route(self, exchange: Exchange, account: Account, route: Route) -> None:
        match route.where:
            case Where.JSON | Where.FORM:
                await self._forwarder.answer_named(exchange, account, route)
            case Where.RESPONSE_ID:
                await self._forwarder.answer_by_id(exchange, account, route)
            case Where.MODEL:
                await exchange.answer_json(self._model(route.name))
            case Where.MODELS:
                data = [self._document(service, state) for service, state in self._executor.services()]
                await exchange.answer_json({"object": "list", "data": data})
            case _:
                await exchange.answer_json({"status": "ok"})

    async def _answer_preflight(self, exchange: Exchange) -> bool:
        """Answer a browser's question whether it may ask; False when it isn't one."""
        headers = self._origins.preflight(exchange.header(b"origin"))
        if not headers or exchange.header(b"access-control-request-method") is None:
            return False
        exchange.extra_headers = headers
        await exchange.start(204, [])
        await exchange.finish()
        return True

    # ---- models

    def _model(self, name: str) -> dict[str, Any]:
        service = self._executor.resolve(name)
        if service is None:
            raise model_not_found(name)
        return self._document(service, self._executor.state(service.name))

    def _document(self, service: Service, state: ServiceState) -> dict[str, Any]:
        return {
            "id": service.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm-frontdoor",
            "service": service.name,
            "aliases": list(service.aliases),
            "task": service.task,
            "depth": state.depth.value,
        }

    # ---- websockets

    async def _answer_socket(self, exchange: Exchange, account: Account) -> None:
        scope = exchange.scope
        try:
            if self._origins.refuses(exchange.header(b"origin")):
                raise AnswerError(status=403, message="Pages of this origin may not open websockets here.")
            key = self._identify(exchange, account)
            if key is not None:
                self._gate.enter(key, self._clock.monotonic())
        except AnswerError as error:
            account.error = error.code or error.type
            await _refuse_handshake(exchange, error)
            self._account(exchange, account)
            return
        try:
            exchange.status = 101
            await self._forwarder.answer_socket(
                scope, exchange.receive, exchange.send, account, exchange.request_id
            )
        finally:
            if key is not None:
                self._gate.leave(key)
            self._account(exchange, account)

    # ---- accounts

    def _account(self, exchange: Exchange, account: Account) -> None:
        now = self._clock.monotonic()
        gone = exchange.client_gone or account.error == "client_gone"
        status = CLIENT_CLOSED_REQUEST if gone else exchange.status
        service = account.service or ""
        self._metrics.requests.labels(service, account.key or "", str(status)).inc()
        if account.service is not None:
            self._metrics.request_seconds.labels(service).observe(now - account.began)
            self._metrics.count_tokens(service, account.key or "", reported_tokens(exchange.tail))
        if account.error is not None:
            self._metrics.refusals.labels(account.error).inc()
        if exchange.scope["path"] == HEALTH_PATH and status == 200:
            return  # asked every few seconds by the container's health check
        first = exchange.first_byte_at
        self._events.emit(
            "request",
            id=exchange.request_id.decode("latin-1"),
            method=exchange.scope.get("method", "WEBSOCKET"),
            path=exchange.scope["path"][:200],
            service=account.service,
            key=account.key,
            status=status,
            error=account.error,
            found=account.found,
            held_seconds=round(account.held.seconds, 4),
            queue_seconds=round(account.held.queue_seconds, 4),
            wake_seconds=round(account.held.wake_seconds, 4),
            canary_seconds=round(account.held.canary_seconds, 4),
            first_byte_seconds=None if first is None else round(first - account.began, 4),
            seconds=round(now - account.began, 4),
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
        )


async def _refuse_handshake(exchange: Exchange, error: AnswerError) -> None:
    """Answer a handshake with an error as if it were any request (ASGI's websocket denial response)."""
    body = error.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"x-request-id", exchange.request_id),
        *error.headers,
    ]
    exchange.status, exchange.bytes_out = error.status, len(body)
    await exchange.receive()
    await exchange.send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await exchange.send({"type": "websocket.http.response.body", "body": body})


def _request_id(scope: Scope) -> bytes:
    """The client's own id if it is a plain one, else a new one."""
    for key, value in scope["headers"]:
        if key == b"x-request-id" and _REQUEST_ID.fullmatch(value.decode("latin-1")):
            return bytes(value)
    return uuid.uuid4().hex.encode()
