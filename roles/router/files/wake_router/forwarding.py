"""Brings one request to its engine: reads it, holds it while the engine wakes, relays it, and ends it
honestly.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from wake_router import realtime, waits
from wake_router.askers import Asker
from wake_router.clock import Clock
from wake_router.executor import Executor, Held, Lease, RefusedError
from wake_router.form_model import find_model_in_form
from wake_router.lifecycle import PARKED, REPAIR, Depth, Refusal, needs_wake
from wake_router.model_name import NamedBody, UnusableBodyError, find_model
from wake_router.openai_errors import (
    CORDON_SECONDS,
    AnswerError,
    bad_request,
    body_too_large,
    engine_broke_off,
    engine_failed,
    model_not_found,
    model_quarantined,
    model_waking,
    response_not_found,
    router_stopping,
    task_not_supported,
)
from wake_router.proxy import Exchange, Receive, Scope, Send, relay
from wake_router.registry import Service
from wake_router.response_ids import ResponseIds
from wake_router.spool import SPOOL_ABOVE_BYTES, Body
from wake_router.surface import REALTIME, Route, Where
from wake_router.upstream import BrokenOffError, NotReachedError, Pool

COMMENT_SECONDS: Final = 5.0
"""Between two comments that tell a waiting client that its model is waking."""
_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.-]{1,120})"')


class ClientGoneError(Exception):
    """The client has left; there is nobody to answer."""


@dataclass(slots=True)
class Account:
    """What a request's log line tells beside the answer. Times in seconds."""

    began: float
    key: str | None = None
    service: str | None = None
    found: str | None = None
    held: Held = field(default_factory=Held)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may cost."""

    body_max_bytes: int
    websocket_idle_seconds: float
    spool_folder: Path


class Forwarder:
    """Everything that reaches an engine passes here."""

    def __init__(
        self,
        executor: Executor,
        pool: Pool,
        session: aiohttp.ClientSession,
        clock: Clock,
        limits: Limits,
        response_ids: ResponseIds,
    ) -> None:
        self._executor = executor
        self._pool = pool
        self._session = session
        self._clock = clock
        self._limits = limits
        self._response_ids = response_ids

    async def answer_named(self, exchange: Exchange, account: Account, route: Route) -> None:
        """Answer a request whose body names the model; raises AnswerError, ClientGoneError."""
        content = await self._read_body(exchange)
        named = _named(content, route.where, exchange.header(b"content-type") or "")
        service = self._service(named.model, route, account)
        comments = named.stream and (exchange.header(b"x-waking-comments") or "").lower() == "true"
        with Body(named.with_model(service.model), self._limits.spool_folder) as body:
            del content, named
            async with _ended_visibly(exchange, account, service, lambda: self._cut(service)):
                see = (
                    (lambda chunk: self._remember(chunk, service)) if route.path == "/v1/responses" else None
                )
                await self._forward(exchange, account, service, route.path, body, see, comments)

    async def answer_by_id(self, exchange: Exchange, account: Account, route: Route) -> None:
        """Answer a request about an earlier response; raises AnswerError, ClientGoneError."""
        maker = self._response_ids.service_of(route.name)
        service = None if maker is None else self._executor.resolve(maker)
        if service is None:
            raise response_not_found(route.name)
        self._note(service, account)
        query = exchange.scope["query_string"].decode("latin-1")
        path = f"{route.path}?{query}" if query else route.path
        with Body(await self._read_body(exchange), self._limits.spool_folder) as body:
            async with _ended_visibly(exchange, account, service, lambda: self._cut(service)):
                await self._forward(exchange, account, service, path, body, None, False)

    def _remember(self, chunk: bytes, service: Service) -> None:
        """Which engine made a response, from the beginning of its answer."""
        found = _RESPONSE_ID.search(chunk)
        if found is not None:
            self._response_ids.remember(found.group(1).decode(), service.name)

    def _service(self, model: str, route: Route, account: Account) -> Service:
        service = self._executor.resolve(model)
        if service is None:
            raise model_not_found(model)
        if service.task not in route.tasks:
            raise task_not_supported(model, route.path)
        self._note(service, account)
        return service

    def _note(self, service: Service, account: Account) -> None:
        account.service = service.name
        account.found = self._executor.state(service.name).depth.value

    # ---- hold and relay

    async def _forward(
        self,
        exchange: Exchange,
        account: Account,
        service: Service,
        path: str,
        body: Body,
        see: Callable[[bytes], None] | None,
        comments: bool,
    ) -> None:
        replayed = False
        while True:
            lease = await self._admit(exchange, account, service, body, comments)
            try:
                content, now = body.open(), self._clock.monotonic
                await relay(self._pool, exchange, service.base_url, path, content, body.size, now, see)
                return
            except NotReachedError:
                # Not sent yet: it waits for the engine like any other request.
                self._executor.report_unreachable(lease)
            except BrokenOffError as error:
                # Nothing has been answered, so it may be asked again, but only once, lest it be this request.
                if replayed or not error.may_replay:
                    raise engine_failed(service.model, str(error)) from None
                replayed = True
                # A kept-alive connection can end just as a request is sent into it; then the engine is well.
                if not await self._executor.is_alive(service.name):
                    self._executor.report_unreachable(lease)
            finally:
                lease.release()

    async def _admit(
        self, exchange: Exchange, account: Account, service: Service, body: Body, comments: bool
    ) -> Lease:
        wished = waits.preferred_wait(exchange.header(b"prefer"))
        talking: asyncio.Task[None] | None = None
        try:
            if not self._executor.state(service.name).serving:
                if body.size > SPOOL_ABOVE_BYTES:
                    await body.make_small()
                if comments:
                    talking = asyncio.create_task(_tell_that_it_wakes(exchange))
            asker = Asker(exchange.request_id.decode("latin-1"), account.key)
            lease = await self._executor.admit(service.name, asker, wished, body.size, account.held.seconds)
        except KeyError:
            raise model_not_found(service.model) from None
        except RefusedError as refused:
            raise self._refusal(service, refused) from None
        finally:
            if talking is not None:
                talking.cancel()
        lease.when_cut = exchange.cut
        account.held = lease.held
        return lease

    def _refusal(self, service: Service, refused: RefusedError) -> AnswerError:
        if refused.stopping:
            return router_stopping()
        if self._executor.resolve(service.name) is None:
            return model_not_found(service.model)
        depth = waits.depth_to_wake_from(refused.state)
        estimate = self._executor.estimated_wake_seconds(service.name)
        cordoned = bool(self._executor.cordoned_devices(service.name)) and needs_wake(
            refused.state.depth, Depth.AWAKE
        )
        if cordoned:
            estimate = max(estimate, CORDON_SECONDS)
        retry_after = waits.retry_after_seconds(estimate, self._executor.waits)
        if refused.kind is Refusal.QUARANTINED or refused.state.conditions & REPAIR:
            return model_quarantined(service.model, depth, refused.reason, estimate, retry_after)
        what = None
        if refused.state.conditions & PARKED:
            what = "is in maintenance"
        elif cordoned:
            what = "can't be woken: its device is cordoned"
        elif refused.kind is Refusal.QUEUE_FULL and not refused.state.called:
            what = "is not ready yet"
        detail = f", and {refused.reason}" if refused.kind is Refusal.QUEUE_FULL else ""
        return model_waking(service.model, depth, estimate, retry_after, detail, what=what)

    def _cut(self, service: Service) -> AnswerError:
        return self._refusal(service, RefusedError(self._executor.state(service.name), "it was cut"))

    async def _read_body(self, exchange: Exchange) -> bytes:
        limit = self._limits.body_max_bytes
        declared = exchange.header(b"content-length")
        if declared is not None and int(declared) > limit:
            raise body_too_large(limit)
        chunks: list[bytes] = []
        while True:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            exchange.bytes_in += len(chunk)
            if exchange.bytes_in > limit:
                raise body_too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # ---- websockets

    async def answer_socket(
        self, scope: Scope, receive: Receive, send: Send, account: Account, request_id: bytes
    ) -> int:
        """Relay a websocket; returns the code with which it was closed."""
        try:
            greeting = await realtime.greet(scope, receive, send)
            service = self._service(greeting.model, REALTIME, account)
            asker = Asker(request_id.decode("latin-1"), account.key)
            lease = await self._admit_socket(service, account, asker)
        except realtime.SocketClosedError:
            account.error = "client_gone"
            return realtime.NORMAL
        except UnusableBodyError as error:
            return await _refuse_socket(send, account, bad_request(str(error), error.param))
        except AnswerError as error:
            return await _refuse_socket(send, account, error)
        try:
            return await self._relay_socket(receive, send, account, service, greeting)
        finally:
            lease.release()

    async def _admit_socket(self, service: Service, account: Account, asker: Asker) -> Lease:
        try:
            lease = await self._executor.admit(service.name, asker)
        except RefusedError as refused:
            raise self._refusal(service, refused) from None
        task = asyncio.current_task()
        assert task is not None
        lease.when_cut = lambda reason: None if task.done() else _cancel(task)
        account.held = lease.held
        return lease

    async def _relay_socket(
        self, receive: Receive, send: Send, account: Account, service: Service, greeting: realtime.Greeting
    ) -> int:
        path = REALTIME.path
        if greeting.name_in_query:
            path += str(URL.build(query={"model": service.model}))
        link = realtime.Relay(receive, send, self._limits.websocket_idle_seconds, self._clock.monotonic)
        try:
            url = URL(service.base_url + path, encoded=True)
            code = await link.run(self._session, url, greeting, service.model)
        except (aiohttp.ClientError, OSError) as error:
            return await _refuse_socket(send, account, engine_failed(service.model, str(error)))
        except asyncio.CancelledError:
            return await _refuse_socket(send, account, engine_broke_off(service.model))
        await send({"type": "websocket.close", "code": code})
        return code


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


async def _refuse_socket(send: Send, account: Account, error: AnswerError) -> int:
    account.error = error.code or error.type
    code = realtime.TRY_AGAIN_LATER if error.status == 503 else realtime.POLICY_VIOLATION
    if error.status == 502:
        code = realtime.INTERNAL_ERROR
    await send(realtime.error_message(error.document()))
    await send({"type": "websocket.close", "code": code, "reason": error.message[:120]})
    return code


async def _tell_that_it_wakes(exchange: Exchange) -> None:
    """For clients that asked for it: begin the stream, and say now and then that it still goes on."""
    await exchange.start_event_stream()
    while True:
        await exchange.write(b": waking\n\n")
        await asyncio.sleep(COMMENT_SECONDS)


@asynccontextmanager
async def _ended_visibly(
    exchange: Exchange,
    account: Account,
    service: Service,
    refusal: Callable[[], AnswerError],
) -> AsyncIterator[None]:
    """Watches whether the client leaves or the work is cut, and ends the request accordingly."""
    exchange.model = service.model
    exchange.outlet.watch(exchange.leave)
    try:
        yield
    except asyncio.CancelledError:
        if exchange.client_gone:
            exchange.task.uncancel()
            raise ClientGoneError from None
        if exchange.cut_reason is None:
            raise
        exchange.task.uncancel()
        account.error = "cut"
        if not exchange.status:
            raise refusal() from None
        if exchange.event_stream:
            await exchange.finish(engine_broke_off(service.model).server_sent_event())
    finally:
        exchange.outlet.when_gone = None


def _named(content: bytes, where: Where, content_type: str) -> NamedBody:
    try:
        return find_model_in_form(content_type, content) if where is Where.FORM else find_model(content)
    except UnusableBodyError as error:
        raise bad_request(
            str(error), error.param, code="missing_required_parameter" if error.param else None
        ) from None
