"""The admin surface: what operators see and order. Never reachable through the public listener."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from wake_router.access import KeysError
from wake_router.admin_contract import (
    AdminError,
    DeviceDone,
    ErrorMessage,
    Explanation,
    OrderDone,
    ParkedDone,
    ProofDone,
    Reloaded,
    RestartDone,
    ServiceMemory,
    ServiceStatus,
    Status,
)
from wake_router.clock import Clock
from wake_router.durable import DurableWriteError
from wake_router.event_sentences import with_sentence
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.lifecycle import RESTING, Depth, ServiceState
from wake_router.memory_watch import MemoryWatch
from wake_router.metrics import Metrics
from wake_router.orders import ForbiddenOrderError, OrderError, Orders, OrderTimeoutError
from wake_router.registry import RegistryError, Service
from wake_router.settings import Settings, SettingsError
from wake_router.status_page.evidence import EvidenceWatch
from wake_router.status_page.memory_gauges import MemoryGauges
from wake_router.status_page.routes import add_status_page

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_READING: Final = frozenset({"GET", "HEAD"})

KEEP_ALIVE_SECONDS: Final = 15.0
"""Between two comments on a stream of events on which nothing happens."""

Seconds = Annotated[float, Query(ge=0, le=86400, description="seconds")]
Timeout = Annotated[float | None, Query(gt=0, description="how long to wait, in seconds; capped")]


class AdminRequestError(Exception):
    """An answer other than 2xx; the message is a sentence for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def admin_app(
    settings: Settings,
    executor: Executor,
    clock: Clock,
    events: Events,
    metrics: Metrics,
    memory: MemoryWatch,
    reload: Callable[[], list[str]],
) -> FastAPI:
    """The FastAPI application of the admin listener; `reload` reads everything again that may change."""
    app = FastAPI(title="vllm-frontdoor admin", version="1", docs_url=None, redoc_url=None, openapi_url=None)
    guard = _Guard(settings, events)
    app.middleware("http")(guard)
    _add_error_handlers(app)
    evidence = add_status_page(
        app, settings, executor, clock, events, metrics, lambda: _whole_status(executor, clock, memory)
    )
    metrics.registry.register(MemoryGauges(memory))
    _add_reading_routes(app, executor, clock, metrics, evidence, memory)
    orders = Orders(executor, clock)
    _add_order_routes(app, settings, executor, orders)
    _add_maintenance_routes(app, settings, executor, orders)
    _add_event_stream(app, events)

    @app.post("/admin/reload")
    async def reload_everything() -> Reloaded:
        """Read the registry, the keys and the certificate again; what is unusable changes nothing."""
        try:
            changes = reload()
        except (RegistryError, KeysError, SettingsError) as error:
            raise AdminRequestError(422, str(error)) from None
        return Reloaded(instance=executor.instance, changes=changes)

    return app


class _Guard:
    """Lets in who may enter: a known Host, no foreign page, the token for what changes something."""

    def __init__(self, settings: Settings, events: Events) -> None:
        self._hosts = LOOPBACK_HOSTS | {settings.admin_address.host} | settings.admin_hosts
        self._token_file = settings.admin_token_file
        self._events = events

    async def __call__(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        problem = self._problem(request)
        response = _error(problem.status, str(problem)) if problem else await go_on(request)
        if request.method not in _READING:
            client = request.client
            self._events.emit(
                "admin",
                method=request.method,
                path=request.url.path[:200],
                status=response.status_code,
                client=f"{client.host}:{client.port}" if client else None,
                operator=_operator(request),
                error=str(problem) if problem else getattr(request.state, "refusal", None),
            )
        return response

    def _problem(self, request: Request) -> AdminRequestError | None:
        if _host_of(f"//{request.headers.get('host', '')}") not in self._hosts:
            return AdminRequestError(
                403, "This Host is not served here; use the loopback address (ROUTER_ADMIN_HOSTS)."
            )
        origin = request.headers.get("origin")
        if origin is not None and _host_of(origin) not in self._hosts:
            return AdminRequestError(403, "Pages of other origins may not use the admin surface.")
        return None if request.method in _READING else self._token_problem(request)

    def _token_problem(self, request: Request) -> AdminRequestError | None:
        token = _read_token(self._token_file)
        if token is None:
            return AdminRequestError(
                503, f"There is no admin token in {self._token_file}; deploy again to create it."
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token):
            return AdminRequestError(401, "This needs the header 'Authorization: Bearer <admin token>'.")
        return None


def _operator(request: Request) -> str | None:
    """Who orders something, by the name that they give themselves: the token says only that they may."""
    return request.headers.get("x-operator", "")[:64] or None


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _read_token(path: Path) -> bytes | None:
    """Read at every use, so that a new token works at once; None when there is none."""
    try:
        return path.read_bytes().strip() or None
    except OSError:
        return None


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(AdminError(error=ErrorMessage(message=message)).model_dump(), status)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(AdminRequestError)
    async def answer_problem(request: Request, problem: AdminRequestError) -> Response:
        return _refused(request, problem.status, str(problem))

    @app.exception_handler(RequestValidationError)
    async def answer_bad_request(request: Request, error: RequestValidationError) -> Response:
        places = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        return _refused(request, 400, f"The request isn't right: {places}")

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        message = f"{error.detail}: {request.method} {request.url.path[:200]}"
        return _refused(request, error.status_code, message)


def _refused(request: Request, status: int, message: str) -> JSONResponse:
    """The answer; the guard, through which the request came, tells its sentence in the event of the order."""
    request.state.refusal = message
    return _error(status, message)


def _add_reading_routes(
    app: FastAPI,
    executor: Executor,
    clock: Clock,
    metrics: Metrics,
    evidence: EvidenceWatch,
    memory: MemoryWatch,
) -> None:
    @app.get("/admin/status")
    async def status() -> Status:
        return _whole_status(executor, clock, memory)

    @app.get("/admin/services/{name}/why")
    async def why(name: str) -> Explanation:
        with _known(name):
            return Explanation(service=name, depth=executor.state(name).depth, why=executor.explain(name))

    @app.get("/metrics")
    async def show_metrics() -> Response:
        await evidence.refresh()
        states = [(service.name, state) for service, state in executor.services()]
        return Response(metrics.show(states, executor.cordoned), media_type="text/plain; version=0.0.4")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok"}


def _add_order_routes(app: FastAPI, settings: Settings, executor: Executor, orders: Orders) -> None:
    async def order(
        name: str, depth: Depth, timeout_seconds: float | None, operator: str | None
    ) -> OrderDone:
        longest = settings.admin_wait_max_seconds
        with _known(name):
            if depth is not Depth.AWAKE and executor.pinned(name):
                raise AdminRequestError(409, f"Service '{name}' is pinned awake; order unpin first.")
            state = await orders.order(name, depth, min(timeout_seconds or longest, longest), operator)
            return OrderDone(service=name, depth=state.depth, pinned=executor.pinned(name))

    async def pin(name: str, pinned: bool, operator: str | None) -> OrderDone:
        with _known(name):
            await orders.pin(name, pinned, operator)
            return OrderDone(service=name, depth=executor.state(name).depth, pinned=executor.pinned(name))

    @app.post("/admin/services/{name}/wake")
    async def wake(request: Request, name: str, timeout: Timeout = None) -> OrderDone:  # noqa: ASYNC109
        return await order(name, Depth.AWAKE, timeout, _operator(request))

    @app.post("/admin/services/{name}/sleep")
    async def sleep(request: Request, name: str, timeout: Timeout = None) -> OrderDone:  # noqa: ASYNC109
        return await order(name, Depth.SLEEPING, timeout, _operator(request))

    @app.post("/admin/services/{name}/offload")
    async def offload(request: Request, name: str, timeout: Timeout = None) -> OrderDone:  # noqa: ASYNC109
        return await order(name, Depth.OFFLOADED, timeout, _operator(request))

    @app.post("/admin/services/{name}/pin")
    async def pin_service(request: Request, name: str) -> OrderDone:
        return await pin(name, True, _operator(request))

    @app.post("/admin/services/{name}/unpin")
    async def unpin_service(request: Request, name: str) -> OrderDone:
        return await pin(name, False, _operator(request))


def _add_maintenance_routes(app: FastAPI, settings: Settings, executor: Executor, orders: Orders) -> None:
    @app.post("/admin/services/{name}/drain")
    async def drain(
        request: Request, name: str, deadline: Seconds = 120.0, limit: Seconds = 3600.0
    ) -> ParkedDone:
        with _known(name):
            return _parked(name, await orders.drain(name, deadline, limit, _operator(request)))

    @app.post("/admin/services/{name}/maintenance")
    async def maintenance(request: Request, name: str, limit: Seconds = 3600.0) -> ParkedDone:
        with _known(name):
            return _parked(name, await orders.begin_maintenance(name, limit, _operator(request)))

    @app.post("/admin/services/{name}/restart")
    async def restart(
        request: Request,
        name: str,
        deadline: Seconds = 120.0,
        timeout: Timeout = None,  # noqa: ASYNC109
    ) -> RestartDone:
        longest = settings.admin_wait_max_seconds
        with _known(name):
            proof = await orders.restart(name, deadline, min(timeout or longest, longest), _operator(request))
            return RestartDone(
                service=name,
                depth=proof.state.depth,
                canary=proof.canary,
                level_2=proof.level_2,
                pinned=executor.pinned(name),
                incarnation=proof.state.incarnation,
            )

    @app.post("/admin/services/{name}/prove")
    async def prove(request: Request, name: str, timeout: Timeout = None) -> ProofDone:  # noqa: ASYNC109
        longest = settings.admin_wait_max_seconds
        with _known(name):
            proof = await orders.prove(name, min(timeout or longest, longest), _operator(request))
            return ProofDone(
                service=name, depth=proof.state.depth, canary=proof.canary, level_2=proof.level_2
            )

    @app.post("/admin/devices/{name}/cordon")
    async def cordon(name: str) -> DeviceDone:
        return _cordon(executor, name, True)

    @app.post("/admin/devices/{name}/uncordon")
    async def uncordon(name: str) -> DeviceDone:
        return _cordon(executor, name, False)


def _cordon(executor: Executor, wanted: str, cordoned: bool) -> DeviceDone:
    devices = executor.devices()
    found = [key for key, name in devices.items() if wanted.casefold() in (key.casefold(), name.casefold())]
    if not found:
        there = ", ".join(name if name == key else f"{name} ({key})" for key, name in devices.items())
        raise AdminRequestError(404, f"There is no device '{wanted[:100]}'; there are: {there or 'none'}.")
    device = found[0]
    try:
        executor.cordon(device, cordoned)
    except DurableWriteError as error:
        word = "cordoned" if cordoned else "not cordoned"
        message = (
            f"Device '{devices[device]}' is {word} now, but a restart of the router forgets that: {error}"
        )
        raise AdminRequestError(507, message) from None
    return DeviceDone(device=device, cordoned=cordoned)


def _parked(name: str, state: ServiceState) -> ParkedDone:
    return ParkedDone(
        service=name,
        depth=state.depth,
        conditions=sorted(state.conditions),
        in_flight=state.in_flight,
        held=state.held,
    )


def _add_event_stream(app: FastAPI, events: Events) -> None:
    @app.get("/admin/events")
    async def stream() -> StreamingResponse:
        """What happens from now on, as server-sent events; each with its `sentence` for people."""
        return StreamingResponse(_event_stream(events), media_type="text/event-stream")


async def _event_stream(events: Events) -> AsyncIterator[str]:
    with events.listen() as next_event:
        yield ": listening\n\n"
        while True:
            try:
                event = await asyncio.wait_for(next_event(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield ": nothing new\n\n"
                continue
            if event is None:
                return
            yield f"event: {event['event']}\ndata: {json.dumps(with_sentence(event))}\n\n"


@contextmanager
def _known(name: str) -> Iterator[None]:
    """Turns what can go wrong with an order into answers."""
    try:
        yield
    except KeyError:
        message = f"There is no service '{name[:100]}'; GET /admin/status lists them."
        raise AdminRequestError(404, message) from None
    except ForbiddenOrderError as error:
        raise AdminRequestError(409, str(error)) from None
    except OrderTimeoutError as error:
        raise AdminRequestError(504, str(error)) from None
    except OrderError as error:
        raise AdminRequestError(502, str(error)) from None


def _whole_status(executor: Executor, clock: Clock, memory: MemoryWatch) -> Status:
    now, measured = clock.monotonic(), memory.services()
    services = [
        _status(executor, service, state, now, measured.get(service.name))
        for service, state in executor.services()
    ]
    return Status(
        instance=executor.instance,
        services=services,
        cordoned=sorted(executor.cordoned),
        device_memory=memory.devices(),
    )


def _status(
    executor: Executor, service: Service, state: ServiceState, now: float, memory: ServiceMemory | None
) -> ServiceStatus:
    idle = 0.0 if state.in_flight or state.held else now - state.last_activity
    waiting = state.retry_at > now and state.depth in RESTING
    return ServiceStatus(
        name=service.name,
        model=service.model,
        aliases=list(service.aliases),
        task=service.task,
        depth=state.depth,
        conditions=sorted(state.conditions),
        since_seconds=round(now - state.since, 3),
        in_flight=state.in_flight,
        held=state.held,
        idle_seconds=round(idle, 3),
        devices=list(service.devices),
        incarnation=state.incarnation,
        last_wake_seconds=executor.last_wake_seconds(service.name),
        pinned=executor.pinned(service.name),
        restartable=executor.launcher_token(service) is not None,
        retry_in_seconds=round(state.retry_at - now, 3) if waiting else None,
        reason=state.reason,
        memory=memory,
    )
