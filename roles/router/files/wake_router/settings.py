"""Settings of the router, from environment variables.

| variable | default | unit | what |
|---|---|---|---|
| FRONTDOOR_REGISTRY | /registry/registry.json | path | the services (see `registry`) |
| FRONTDOOR_STATE | /state | path | folder for what must survive a restart |
| FRONTDOOR_ADMIN_TOKEN_FILE | /secrets/admin-token | path | what state-changing admin calls must present |
| FRONTDOOR_EVIDENCE | /evidence | path | folder of the diagnostics' evidence, to be shown |
| FRONTDOOR_LAUNCHER_TOKENS | /secrets/launchers | path | `<service>/token` in it: to order restarts |
| ROUTER_PUBLIC_ADDRESS | 0.0.0.0:8000 | host:port | OpenAI surface |
| ROUTER_ADMIN_ADDRESS | 127.0.0.1:8010 | host:port | admin surface |
| ROUTER_HEALTH_ADDRESS | (none) | host:port | a listener for a balancer's checks only |
| ROUTER_ADMIN_HOSTS | (none) | comma list | Host names accepted by the admin surface beside loopback |
| IDLE_SLEEP_MIN | 15 | minutes | idle time until level 1; 0: never |
| IDLE_OFFLOAD_MIN | 180 | minutes | idle time until level 2; 0: never |
| ROUTER_HOLD_SLEEPING | 30 | seconds | how long a request waits for a sleeping or stopped service |
| ROUTER_HOLD_OFFLOADED | 180 | seconds | ... for an offloaded one |
| ROUTER_HOLD_RESTARTING | 600 | seconds | ... for one that is starting |
| ROUTER_HOLD_MAX | 600 | seconds | cap on all of these and on a client's `Prefer: wait=N` |
| ROUTER_RETRY_AFTER_SLEEPING | 10 | seconds | Retry-After of a 503 while sleeping |
| ROUTER_RETRY_AFTER_OFFLOADED | 60 | seconds | ... while offloaded or stopped |
| ROUTER_RETRY_AFTER_RESTARTING | 600 | seconds | ... while starting |
| ROUTER_RETRY_AFTER_MAX | 600 | seconds | cap on the header; the body tells the true estimate |
| ROUTER_HELD_MAX | 2048 | requests | how many may wait per service |
| ROUTER_HELD_MAX_MIB | 1024 | MiB | of bodies that may wait for all services together |
| ROUTER_HELD_MAX_MIB_PER_SERVICE | 256 | MiB | ... for one service |
| ROUTER_WEBSOCKET_IDLE | 600 | seconds | without a message until a websocket is closed |
| ROUTER_BODY_MAX_MIB | 64 | MiB | largest request body; 413 above |
| ROUTER_API_KEYS_FILE | (none) | path | named keys, hashed; none: nobody needs one |
| ROUTER_CORS_ORIGINS | (none) | comma list | origins whose pages may read answers; `*`: all |
| ROUTER_TLS_CERTIFICATE | (none) | path | PEM chain for the public listener; needs ROUTER_TLS_KEY |
| ROUTER_TLS_KEY | (none) | path | its private key, PEM |
| ROUTER_CONNECT_TIMEOUT | 5 | seconds | to open a connection to an engine |
| ROUTER_UPSTREAM_IDLE_TIMEOUT | 3600 | seconds | without a byte from the engine until a request is given up |
| ROUTER_SLEEP_TIMEOUT | 300 | seconds | for one sleep call |
| ROUTER_WAKE_TIMEOUT | 600 | seconds | for one wake call |
| ROUTER_RELOAD_TIMEOUT | 1800 | seconds | to reload weights from disk |
| ROUTER_CANARY_TIMEOUT | 120 | seconds | for one answer of a canary |
| ROUTER_CANARY_INTERVAL | 21600 | seconds | between two canaries of an awake service; 0: never |
| ROUTER_CORRUPTION_INTERVAL | 30 | seconds | between two looks at the count of NaN answers; 0: never |
| ROUTER_WEDGED_SECONDS | 120 | seconds | without an answer to /is_sleeping until it isn't trusted; 0: never |
| ROUTER_OBSERVE_INTERVAL | 1 | seconds | between two looks at an engine |
| ROUTER_MEMORY_INTERVAL | 30 | seconds | between two measurements of an engine's memory; 0: never |
| ROUTER_STOP_TIMEOUT | 30 | seconds | streams may go on after SIGTERM |
| ROUTER_ADMIN_WAIT_MAX | 900 | seconds | how long an admin call waits for its transition |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

_Number = TypeVar("_Number", int, float)


MIB: Final = 1024 * 1024


class SettingsError(ValueError):
    """A setting is wrong; the message says which, and what would be right."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the public listener's certificate."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, checked; durations in seconds, sizes in bytes."""

    registry: Path
    state: Path
    admin_token_file: Path
    evidence: Path
    launcher_tokens: Path
    public_address: Address
    admin_address: Address
    health_address: Address | None
    admin_hosts: frozenset[str]
    idle_sleep_seconds: float
    idle_offload_seconds: float
    hold_sleeping_seconds: float
    hold_offloaded_seconds: float
    hold_restarting_seconds: float
    hold_max_seconds: float
    retry_after_sleeping_seconds: float
    retry_after_offloaded_seconds: float
    retry_after_restarting_seconds: float
    retry_after_max_seconds: float
    held_max: int
    held_max_bytes: int
    held_max_bytes_per_service: int
    websocket_idle_seconds: float
    body_max_bytes: int
    api_keys_file: Path | None
    cors_origins: frozenset[str]
    tls: Tls | None
    connect_timeout_seconds: float
    upstream_idle_timeout_seconds: float
    sleep_timeout_seconds: float
    wake_timeout_seconds: float
    reload_timeout_seconds: float
    canary_timeout_seconds: float
    canary_interval_seconds: float
    corruption_interval_seconds: float
    wedged_seconds: float
    observe_interval_seconds: float
    memory_interval_seconds: float
    stop_timeout_seconds: float
    admin_wait_max_seconds: float


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables; raises SettingsError with one sentence per mistake."""
    reader = _Reader(environment)
    settings = Settings(
        registry=Path(reader.text("FRONTDOOR_REGISTRY", "/registry/registry.json")),
        state=Path(reader.text("FRONTDOOR_STATE", "/state")),
        admin_token_file=Path(reader.text("FRONTDOOR_ADMIN_TOKEN_FILE", "/secrets/admin-token")),
        evidence=Path(reader.text("FRONTDOOR_EVIDENCE", "/evidence")),
        launcher_tokens=Path(reader.text("FRONTDOOR_LAUNCHER_TOKENS", "/secrets/launchers")),
        public_address=reader.address("ROUTER_PUBLIC_ADDRESS", "0.0.0.0:8000"),
        admin_address=reader.address("ROUTER_ADMIN_ADDRESS", "127.0.0.1:8010"),
        health_address=reader.address_or_none("ROUTER_HEALTH_ADDRESS"),
        admin_hosts=frozenset(reader.names("ROUTER_ADMIN_HOSTS")),
        idle_sleep_seconds=60 * reader.number("IDLE_SLEEP_MIN", 15, "minutes"),
        idle_offload_seconds=60 * reader.number("IDLE_OFFLOAD_MIN", 180, "minutes"),
        hold_sleeping_seconds=reader.number("ROUTER_HOLD_SLEEPING", 30),
        hold_offloaded_seconds=reader.number("ROUTER_HOLD_OFFLOADED", 180),
        hold_restarting_seconds=reader.number("ROUTER_HOLD_RESTARTING", 600),
        hold_max_seconds=reader.number("ROUTER_HOLD_MAX", 600),
        retry_after_sleeping_seconds=reader.number("ROUTER_RETRY_AFTER_SLEEPING", 10),
        retry_after_offloaded_seconds=reader.number("ROUTER_RETRY_AFTER_OFFLOADED", 60),
        retry_after_restarting_seconds=reader.number("ROUTER_RETRY_AFTER_RESTARTING", 600),
        retry_after_max_seconds=reader.number("ROUTER_RETRY_AFTER_MAX", 600, least=1),
        held_max=int(reader.number("ROUTER_HELD_MAX", 2048, "requests")),
        held_max_bytes=int(reader.number("ROUTER_HELD_MAX_MIB", 1024, "MiB") * MIB),
        held_max_bytes_per_service=int(reader.number("ROUTER_HELD_MAX_MIB_PER_SERVICE", 256, "MiB") * MIB),
        websocket_idle_seconds=reader.number("ROUTER_WEBSOCKET_IDLE", 600, least=0.1),
        body_max_bytes=int(reader.number("ROUTER_BODY_MAX_MIB", 64, "MiB", least=0.001) * MIB),
        api_keys_file=reader.path("ROUTER_API_KEYS_FILE"),
        cors_origins=frozenset(reader.names("ROUTER_CORS_ORIGINS")),
        tls=reader.tls("ROUTER_TLS_CERTIFICATE", "ROUTER_TLS_KEY"),
        connect_timeout_seconds=reader.number("ROUTER_CONNECT_TIMEOUT", 5, least=0.01),
        upstream_idle_timeout_seconds=reader.number("ROUTER_UPSTREAM_IDLE_TIMEOUT", 3600, least=1),
        sleep_timeout_seconds=reader.number("ROUTER_SLEEP_TIMEOUT", 300, least=0.1),
        wake_timeout_seconds=reader.number("ROUTER_WAKE_TIMEOUT", 600, least=0.1),
        reload_timeout_seconds=reader.number("ROUTER_RELOAD_TIMEOUT", 1800, least=0.1),
        canary_timeout_seconds=reader.number("ROUTER_CANARY_TIMEOUT", 120, least=0.1),
        canary_interval_seconds=reader.number("ROUTER_CANARY_INTERVAL", 21600),
        corruption_interval_seconds=reader.number("ROUTER_CORRUPTION_INTERVAL", 30),
        wedged_seconds=reader.number("ROUTER_WEDGED_SECONDS", 120),
        observe_interval_seconds=reader.number("ROUTER_OBSERVE_INTERVAL", 1, least=0.01),
        memory_interval_seconds=reader.number("ROUTER_MEMORY_INTERVAL", 30),
        stop_timeout_seconds=reader.number("ROUTER_STOP_TIMEOUT", 30),
        admin_wait_max_seconds=reader.number("ROUTER_ADMIN_WAIT_MAX", 900, least=1),
    )
    reader.finish()
    return settings


class _Reader:
    """Reads variables one by one and keeps all mistakes for one error."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._mistakes: list[str] = []

    def text(self, name: str, default: str) -> str:
        value = self._environment.get(name, "").strip()
        return value or default

    def path(self, name: str) -> Path | None:
        text = self.text(name, "")
        return Path(text) if text else None

    def tls(self, certificate_name: str, key_name: str) -> Tls | None:
        certificate, key = self.text(certificate_name, ""), self.text(key_name, "")
        if bool(certificate) != bool(key):
            self._mistakes.append(f"{certificate_name} and {key_name} must be given together.")
        return Tls(certificate, key) if certificate and key else None

    def names(self, name: str) -> list[str]:
        return [part.strip().lower() for part in self.text(name, "").split(",") if part.strip()]

    def number(self, name: str, default: float, unit: str = "seconds", least: float = 0.0) -> float:
        text = self.text(name, str(default))
        value = _parsed(float, text)
        if value is None or not least <= value < 1e9:
            self._mistakes.append(f"{name} is {text!r}, but must be a number of {unit}, at least {least:g}.")
            return default
        return value

    def address_or_none(self, name: str) -> Address | None:
        return self.address(name, "") if self.text(name, "") else None

    def address(self, name: str, default: str) -> Address:
        text = self.text(name, default)
        host, _, port_text = text.rpartition(":")
        port = _parsed(int, port_text)
        if not host or port is None or not 0 <= port <= 65535:
            self._mistakes.append(f"{name} is {text!r}, but must look like 127.0.0.1:8000.")
            return Address("127.0.0.1", 0)
        return Address(host.strip("[]"), port)

    def finish(self) -> None:
        if self._mistakes:
            raise SettingsError(" ".join(self._mistakes))


def _parsed(parse: Callable[[str], _Number], text: str) -> _Number | None:
    try:
        return parse(text)
    except ValueError:
        return None
