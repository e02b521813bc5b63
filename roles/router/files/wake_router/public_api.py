"""The OpenAI surface: an allow-list of paths, the model's name in each request, and honest answers.

A plain ASGI application, since a web framework's routing costs nearly half of the throughput of small
requests.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
from yarl import URL

from wake_router import waits
from wake_router.clock import Clock
from wake_router.events import Events
from wake_router.executor import Executor, Lease, RefusedError
from wake_router.lifecycle import Condition, ServiceState
from wake_router.metrics import Metrics
from wake_router.model_name import NamedBody, UnusableBodyError, find_model
from wake_router.openai_errors import (
    AnswerError,
    bad_request,
    body_too_large,
    engine_failed,
    method_not_allowed,
    model_not_found,
    model_quarantined,
    model_waking,
    path_not_found,
    router_stopping,
    task_not_supported,
)
from wake_router.proxy import BrokenOffError, Exchange, NotReachedError, Receive, Scope, Send, relay
from wake_router.registry import Service

_GENERATING: Final = frozenset({"generate"})
_POOLING: Final = frozenset({"embed", "rerank"})
_ANY_TASK: Final = _GENERATING | _POOLING

JSON_PATHS: Final[dict[str, frozenset[str]]] = {
    "/v1/chat/completions": _GENERATING,
    "/v1/completions": _GENERATING,
    "/v1/responses": _GENERATING,
    "/v1/messages": _GENERATING,
    "/v1/messages/count_tokens": _GENERATING,
    "/v1/embeddings": _POOLING,
    "/v1/score": _POOLING,
    "/score": _POOLING,
    "/v1/rerank": _POOLING,
    "/v2/rerank": _POOLING,
    "/rerank": _POOLING,
    "/classify": _POOLING,
    "/pooling": _POOLING,
    "/tokenize": _ANY_TASK,
    "/detokenize": _ANY_TASK,
}
"""Paths that take a JSON body with a model's name, and the tasks whose engines have them (vLLM 0.32.0)."""

_MODELS: Final = "/v1/models"
_HEALTH: Final = "/health"
_TRICKS: Final = re.compile(rb"%(?:2[ef5]|5c|00)|\\", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


class ClientGoneError(Exception):
    """The client has left; there is nobody to answer."""


@dataclass(slots=True)
class _Timing:
    """What the request's log line tells beside the answer."""

    began: float
    service: str | None = None
    held_seconds: float = 0.0
    error: str | None = None


class PublicApi:
    """The ASGI application of the public listener."""

    def __init__(
        self,
        executor: Executor,
        session: aiohttp.ClientSession,
        clock: Clock,
        events: Events,
        metrics: Metrics,
        body_max_bytes: int,
    ) -> None:
        self._executor = executor
        self._session = session
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._body_max_bytes = body_max_bytes
        self._created = int(clock.wall())
        self._urls: dict[tuple[str, str], URL] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        exchange = Exchange(scope, receive, send, _request_id(scope))
        timing = _Timing(self._clock.monotonic())
        try:
            await self._answer(exchange, timing)
        except AnswerError as error:
            timing.error = error.code or error.type
            await exchange.answer_error(error)
        except ClientGoneError:
            timing.error = "client_gone"
        finally:
            self._account(exchange, timing)

    async def _answer(self, exchange: Exchange, timing: _Timing) -> None:
        scope = exchange.scope
        method, path = scope["method"], scope["path"]
        if path.startswith(_MODELS + "/") and len(path) > len(_MODELS) + 1:
            _require(method, path, "GET")
            await self._answer_model(exchange, unquote(path[len(_MODELS) + 1 :]))
            return
        if _TRICKS.search(scope["raw_path"]):
            raise path_not_found(method, path)
        if path in JSON_PATHS:
            _require(method, path, "POST")
            await self._answer_from_engine(exchange, timing, path)
        elif path == _MODELS:
            _require(method, path, "GET")
            data = [self._model_document(service, state) for service, state in self._executor.services()]
            await exchange.answer(200, json.dumps({"object": "list", "data": data}).encode())
        elif path == _HEALTH:
            _require(method, path, "GET")
            await exchange.answer(200, b'{"status":"ok"}')
        else:
            raise path_not_found(method, path)

    # ---- models

    async def _answer_model(self, exchange: Exchange, name: str) -> None:
        service = self._executor.resolve(name)
        if service is None:
            raise model_not_found(name)
        document = self._model_document(service, self._executor.state(service.name))
        await exchange.answer(200, json.dumps(document).encode())

    def _model_document(self, service: Service, state: ServiceState) -> dict[str, Any]:
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

    # ---- requests for engines

    async def _answer_from_engine(self, exchange: Exchange, timing: _Timing, path: str) -> None:
        named = _named_body(await self._read_body(exchange))
        service = self._executor.resolve(named.model)
        if service is None:
            raise model_not_found(named.model)
        if service.task not in JSON_PATHS[path]:
            raise task_not_supported(named.model, path)
        timing.service = service.name
        exchange.scope["frontdoor.model"] = service.model
        main = asyncio.current_task()
        assert main is not None
        watch = asyncio.create_task(_cancel_when_client_leaves(exchange, main))
        try:
            await self._forward(exchange, timing, service, path, named)
        except asyncio.CancelledError:
            if not exchange.client_gone:
                raise
            main.uncancel()
            raise ClientGoneError from None
        finally:
            watch.cancel()

    async def _forward(
        self, exchange: Exchange, timing: _Timing, service: Service, path: str, named: NamedBody
    ) -> None:
        wished = waits.preferred_wait(exchange.header(b"prefer"))
        replayed = False
        while True:
            lease = await self._admit(service, wished)
            timing.held_seconds += lease.held_seconds
            try:
                body = named.with_model(service.model)
                await relay(
                    self._session, exchange, "POST", self._url(service, path), body, self._clock.monotonic
                )
                return
            except NotReachedError:
                # Not sent yet: it waits for the engine like any other request.
                self._executor.report_unreachable(lease)
            except BrokenOffError as error:
                # A kept-alive connection can end just as a request is sent into it; then the engine is well.
                if replayed or not await self._executor.is_alive(service.name):
                    raise engine_failed(service.model, str(error)) from None
                replayed = True
            finally:
                lease.release()

    async def _admit(self, service: Service, wished: float | None) -> Lease:
        try:
            return await self._executor.admit(service.name, wished)
        except KeyError:
            raise model_not_found(service.model) from None
        except RefusedError as refused:
            raise self._refusal(service, refused) from None

    def _refusal(self, service: Service, refused: RefusedError) -> AnswerError:
        if refused.stopping:
            return router_stopping()
        depth = waits.depth_to_wake_from(refused.state)
        estimate = waits.estimated_wake_seconds(depth, self._executor.waits)
        retry_after = waits.retry_after_seconds(estimate, self._executor.waits)
        if refused.state.conditions & {Condition.QUARANTINED, Condition.FAILED}:
            return model_quarantined(service.model, depth, refused.reason, estimate, retry_after)
        detail = f", and {refused.reason}" if refused.queue_full else ""
        return model_waking(service.model, depth, estimate, retry_after, detail)

    def _url(self, service: Service, path: str) -> URL:
        key = (service.base_url, path)
        url = self._urls.get(key)
        if url is None:
            url = self._urls[key] = URL(service.base_url + path)
        return url

    async def _read_body(self, exchange: Exchange) -> bytes:
        declared = exchange.header(b"content-length")
        if declared is not None and int(declared) > self._body_max_bytes:
            raise body_too_large(self._body_max_bytes)
        chunks: list[bytes] = []
        while True:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            exchange.bytes_in += len(chunk)
            if exchange.bytes_in > self._body_max_bytes:
                raise body_too_large(self._body_max_bytes)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # ---- accounts

    def _account(self, exchange: Exchange, timing: _Timing) -> None:
        now = self._clock.monotonic()
        status = 499 if exchange.client_gone or timing.error == "client_gone" else exchange.status
        service = timing.service or ""
        self._metrics.requests.labels(service, str(status)).inc()
        if timing.service is not None:
            self._metrics.request_seconds.labels(service).observe(now - timing.began)
        if timing.error is not None:
            self._metrics.refusals.labels(timing.error).inc()
        first = exchange.first_byte_at
        self._events.emit(
            "request",
            id=exchange.request_id.decode("latin-1"),
            method=exchange.scope["method"],
            path=exchange.scope["path"][:200],
            service=timing.service,
            status=status,
            error=timing.error,
            held_seconds=round(timing.held_seconds, 4),
            first_byte_seconds=None if first is None else round(first - timing.began, 4),
            seconds=round(now - timing.began, 4),
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
        )


async def _cancel_when_client_leaves(exchange: Exchange, main: asyncio.Task[Any]) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        continue
    if not exchange.finished:
        exchange.client_gone = True
        main.cancel()


def _named_body(body: bytes) -> NamedBody:
    try:
        return find_model(body)
    except UnusableBodyError as error:
        code = "missing_required_parameter" if error.param else None
        raise bad_request(str(error), error.param, code) from None


def _require(method: str, path: str, allowed: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise method_not_allowed(method, path, allowed)


def _request_id(scope: Scope) -> bytes:
    """The client's own id if it is a plain one, else a new one."""
    for key, value in scope["headers"]:
        if key == b"x-request-id" and _REQUEST_ID.fullmatch(value.decode("latin-1")):
            return bytes(value)
    return uuid.uuid4().hex.encode()
