"""Puts the router together: two listeners in one process and one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import aiohttp
import uvicorn

from wake_router import spool
from wake_router.access import Gate, KeysError, Origins, read_keys
from wake_router.admin_api import admin_app
from wake_router.balancer import BalancerHealth
from wake_router.clock import SystemClock
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.forwarding import Forwarder, Limits
from wake_router.http_protocol import PublicProtocol
from wake_router.memory_watch import MemoryWatch
from wake_router.metrics import Metrics
from wake_router.public_api import PublicApi
from wake_router.realtime import MESSAGE_MAX_BYTES
from wake_router.registry import Registry, RegistryError, read_registry
from wake_router.response_ids import ResponseIds
from wake_router.settings import Address, Settings, SettingsError, Tls, read_settings
from wake_router.upstream import KEEP_ALIVE_SECONDS, Pool

ACCEPTS_PER_TURN: Final = 32
START_ERRORS: Final = (SettingsError, RegistryError, KeysError)
"""What keeps a router from starting; each is a sentence for people."""


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the router."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: two servers share one process."""
        yield


def read_all(environment: Mapping[str, str]) -> tuple[Settings, Registry, Gate]:
    """The settings and what they name, read as for a start; raises one of START_ERRORS."""
    settings = read_settings(environment)
    registry = read_registry(settings.registry)
    gate = Gate(None if settings.api_keys_file is None else read_keys(settings.api_keys_file))
    if settings.tls is not None:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings.tls)
    return settings, registry, gate


def run(environment: Mapping[str, str]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status (2: settings or registry are wrong)."""
    try:
        settings, registry, gate = read_all(environment)
        addresses = [settings.public_address, settings.admin_address]
        addresses += [settings.health_address] if settings.health_address is not None else []
        sockets = [_listen(address) for address in addresses]
    except START_ERRORS as error:
        print(f"wake_router: {error}", file=sys.stderr)
        return 2
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(settings, registry, gate, sockets))
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
            "Set ROUTER_PUBLIC_ADDRESS, ROUTER_ADMIN_ADDRESS or ROUTER_HEALTH_ADDRESS to a free one."
        ) from None
    listener.listen(2048)
    return listener


def _several(listener: socket.socket) -> list[socket.socket]:
    """The same listener several times: libuv accepts one connection per listener and turn of its loop.

    Measured with 256 clients that come at once: with one, some wait for seconds while others are served.
    """
    return [listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


async def _serve(settings: Settings, registry: Registry, gate: Gate, sockets: list[socket.socket]) -> None:
    clock, metrics = SystemClock(), Metrics()
    events = Events(clock)
    pool = Pool(clock, settings.connect_timeout_seconds, settings.upstream_idle_timeout_seconds)
    async with _new_session(settings) as session:
        executor = Executor(settings, session, clock, events, metrics)
        executor.load(registry)
        executor.start()
        memory = MemoryWatch(executor, clock, events, settings.registry, settings.memory_interval_seconds)
        memory.load_plan()
        memory.start()
        limits = Limits(
            body_max_bytes=settings.body_max_bytes,
            websocket_idle_seconds=settings.websocket_idle_seconds,
            spool_folder=settings.state / "held",
        )
        spool.clear(limits.spool_folder)
        response_ids = ResponseIds(
            settings.state / "response_ids", lambda error: events.emit("disk", service=None, error=error)
        )
        forwarder = Forwarder(executor, pool, session, clock, limits, response_ids)
        origins = Origins(settings.cors_origins)
        public = PublicApi(executor, forwarder, gate, origins, clock, events, metrics)
        public_server = _server(public, settings, settings.tls)

        def reload() -> list[str]:
            changes = executor.load(read_registry(settings.registry))
            memory.load_plan()
            if settings.api_keys_file is not None:
                gate.replace_keys(read_keys(settings.api_keys_file))
            if settings.tls is not None and public_server.config.ssl is not None:
                _load_certificate(public_server.config.ssl, settings.tls)
            return changes

        admin = admin_app(settings, executor, clock, events, metrics, memory, reload)
        servers = [public_server, _server(admin, settings)]
        if settings.health_address is not None:
            servers.append(_server(BalancerHealth(lambda: executor.stopping), settings))
        stop = _stop_on_signals()
        _reload_on_hangup(reload, events)
        serving = [
            asyncio.create_task(server.serve(sockets=_several(listener)))
            for server, listener in zip(servers, sockets, strict=True)
        ]
        addresses = [_shown(listener) for listener in sockets]
        events.emit("started", instance=executor.instance, public=addresses[0], admin=addresses[1])
        await stop.wait()
        events.emit("stopping", limit_seconds=settings.stop_timeout_seconds)
        executor.begin_stop()
        memory.stop()
        events.close()
        for server in servers:
            server.should_exit = True
        transitions = asyncio.create_task(executor.finish_stop(settings.stop_timeout_seconds))
        await asyncio.gather(transitions, *serving)
        await pool.close()
        response_ids.close()
        events.emit("stopped")


def _new_session(settings: Settings) -> aiohttp.ClientSession:
    """The client for orders to engines and for websockets; requests go through the pool."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_seconds,
            sock_read=settings.upstream_idle_timeout_seconds,
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    """Use a certificate for new connections; raises SettingsError."""
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"The certificate {tls.certificate} with the key {tls.key} can't be used: {error}. "
            "Set ROUTER_TLS_CERTIFICATE and ROUTER_TLS_KEY to a matching pair of PEM files."
        ) from None


def _server(application: Any, settings: Settings, tls: Tls | None = None) -> _Server:
    return _Server(
        uvicorn.Config(
            application,
            http=PublicProtocol,
            ws="websockets-sansio",
            ws_max_size=MESSAGE_MAX_BYTES,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            log_level="critical",
            server_header=False,
            timeout_keep_alive=75,
            # Later than the router's own limit, by which it ends what still streams.
            timeout_graceful_shutdown=int(settings.stop_timeout_seconds) + 5,
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


def _reload_on_hangup(reload: Callable[[], list[str]], events: Events) -> None:
    def try_to_reload() -> None:
        try:
            reload()
        except START_ERRORS as error:
            events.emit("reload", error=str(error))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, try_to_reload)
