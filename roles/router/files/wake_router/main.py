"""Puts the router together: two listeners in one process and one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from wake_router.admin_api import admin_app
from wake_router.clock import SystemClock
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.intent_store import IntentStore
from wake_router.metrics import Metrics
from wake_router.proxy import new_session
from wake_router.public_api import PublicApi
from wake_router.registry import Registry, RegistryError, read_registry
from wake_router.settings import Address, Settings, SettingsError, read_settings


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the router."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: two servers share one process."""
        yield


def run(environment: Mapping[str, str]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status (2: settings or registry are wrong)."""
    try:
        settings = read_settings(environment)
        registry = read_registry(settings.registry)
        sockets = [_listen(settings.public_address), _listen(settings.admin_address)]
    except (SettingsError, RegistryError) as error:
        print(f"wake_router: {error}", file=sys.stderr)
        return 2
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(settings, registry, sockets))
    return 0


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
    except OSError as error:
        raise SettingsError(
            f"The router can't listen on {address.host}:{address.port}: {error.strerror}. "
            "Set ROUTER_PUBLIC_ADDRESS or ROUTER_ADMIN_ADDRESS to a free one."
        ) from None
    listener.listen(2048)
    return listener


async def _serve(settings: Settings, registry: Registry, sockets: list[socket.socket]) -> None:
    clock, metrics = SystemClock(), Metrics()
    events = Events(clock)
    async with new_session(
        settings.connect_timeout_seconds, settings.upstream_idle_timeout_seconds
    ) as session:
        store = IntentStore(settings.state / "intents")
        executor = Executor(settings, session, clock, store, events, metrics)
        executor.load(registry)
        executor.start()
        public = PublicApi(executor, session, clock, events, metrics, settings.body_max_bytes)
        admin = admin_app(settings, executor, clock, events, metrics)
        servers = [_server(public, settings), _server(admin, settings)]
        stop = _stop_on_signals()
        _reload_on_hangup(settings, executor, events)
        serving = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(servers, sockets, strict=True)
        ]
        addresses = [_shown(listener) for listener in sockets]
        events.emit("started", instance=executor.instance, public=addresses[0], admin=addresses[1])
        await stop.wait()
        events.emit("stopping", limit_seconds=settings.stop_timeout_seconds)
        executor.begin_stop()
        for server in servers:
            server.should_exit = True
        transitions = asyncio.create_task(executor.finish_stop(settings.stop_timeout_seconds))
        await asyncio.gather(transitions, *serving)
        events.emit("stopped")


def _server(application: Any, settings: Settings) -> _Server:
    return _Server(
        uvicorn.Config(
            application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="critical",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, int(settings.stop_timeout_seconds)),
        )
    )


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _reload_on_hangup(settings: Settings, executor: Executor, events: Events) -> None:
    def reload() -> None:
        try:
            executor.load(read_registry(settings.registry))
        except RegistryError as error:
            events.emit("registry", error=str(error))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
