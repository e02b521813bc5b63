"""The router's settings as people write them, and as its environment and its secrets hold them.

The names, units and limits of the environment variables are the router's own (`wake_router.settings`); a test
binds both.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from . import values
from .values import WrongValueError

API_KEYS = "secrets/api-keys.json"
TLS_CERTIFICATE = "secrets/tls-certificate.pem"
TLS_KEY = "secrets/tls-key.pem"

_LONGEST_SECONDS = 31_536_000
_MOST_MEBIBYTES = 1_048_576


@dataclass(frozen=True)
class Setting:
    """One environment variable of the router: `router_<key>` is what people set."""

    key: str
    environment: str
    read: values.Reader[str]


def number(least: str, most: int, unit: str) -> values.Reader[str]:
    """A number from `least` to `most`, as the text that the router reads."""

    def read(value: Any) -> str:
        found = values.decimal_or_none(value)
        if found is None or not Decimal(least) <= found <= most:
            span = f"a number of {unit} from {least} to {most}"
            raise WrongValueError(f"It is not {span}.", f"Write {span}.")
        return f"{found.normalize():f}"

    return read


def _comma_list(read_item: Callable[[Any], str]) -> values.Reader[str]:
    read_all = values.list_of(read_item, single=True)
    return lambda value: ",".join(read_all(value))


def _host(value: Any) -> str:
    text = values.word(value).lower()
    if not re.fullmatch(r"[a-z0-9.:-]{1,253}", text):
        raise WrongValueError("It is no host name.", "Write a name such as box.example.org.")
    return text


def _origin(value: Any) -> str:
    text = values.word(value).lower().rstrip("/")
    if text != "*" and not re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", text):
        raise WrongValueError(
            "It is no origin of web pages.", "Write one such as https://chat.example.org, or * for all."
        )
    return text


def health_address(value: Any) -> str:
    """An address and a TCP port such as 10.0.0.5:8081."""
    text = values.word(value)
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number_of_port = int(port)
    except ValueError:
        raise WrongValueError(
            "It is no address with a port.", "Write an address and a port such as 10.0.0.5:8081."
        ) from None
    if not 1 <= number_of_port <= 65535:
        raise WrongValueError("Its port is outside of 1 to 65535.", "Write a port such as 8081.")
    return f"[{address}]:{number_of_port}" if address.version == 6 else f"{address}:{number_of_port}"


def _seconds(key: str, environment: str, least: str = "0") -> Setting:
    return Setting(f"{key}_seconds", environment, number(least, _LONGEST_SECONDS, "seconds"))


def _mebibytes(key: str, environment: str, least: str = "0") -> Setting:
    return Setting(key, environment, number(least, _MOST_MEBIBYTES, "MiB"))


SETTINGS = (
    Setting("health_address", "ROUTER_HEALTH_ADDRESS", health_address),
    Setting("admin_hosts", "ROUTER_ADMIN_HOSTS", _comma_list(_host)),
    Setting("cors_origins", "ROUTER_CORS_ORIGINS", _comma_list(_origin)),
    _seconds("hold_sleeping", "ROUTER_HOLD_SLEEPING"),
    _seconds("hold_offloaded", "ROUTER_HOLD_OFFLOADED"),
    _seconds("hold_restarting", "ROUTER_HOLD_RESTARTING"),
    _seconds("retry_after_sleeping", "ROUTER_RETRY_AFTER_SLEEPING"),
    _seconds("retry_after_offloaded", "ROUTER_RETRY_AFTER_OFFLOADED"),
    _seconds("retry_after_restarting", "ROUTER_RETRY_AFTER_RESTARTING"),
    _seconds("retry_after_max", "ROUTER_RETRY_AFTER_MAX", "1"),
    Setting("held_max_requests", "ROUTER_HELD_MAX", number("0", 1_000_000, "requests")),
    _mebibytes("held_max_mib", "ROUTER_HELD_MAX_MIB"),
    _mebibytes("held_max_mib_per_service", "ROUTER_HELD_MAX_MIB_PER_SERVICE"),
    _seconds("websocket_idle", "ROUTER_WEBSOCKET_IDLE", "0.1"),
    _mebibytes("body_max_mib", "ROUTER_BODY_MAX_MIB", "0.001"),
    _seconds("connect_timeout", "ROUTER_CONNECT_TIMEOUT", "0.01"),
    _seconds("upstream_idle_timeout", "ROUTER_UPSTREAM_IDLE_TIMEOUT", "1"),
    _seconds("sleep_timeout", "ROUTER_SLEEP_TIMEOUT", "0.1"),
    _seconds("wake_timeout", "ROUTER_WAKE_TIMEOUT", "0.1"),
    _seconds("reload_timeout", "ROUTER_RELOAD_TIMEOUT", "0.1"),
    _seconds("canary_timeout", "ROUTER_CANARY_TIMEOUT", "0.1"),
    _seconds("canary_interval", "ROUTER_CANARY_INTERVAL"),
    _seconds("corruption_interval", "ROUTER_CORRUPTION_INTERVAL"),
    _seconds("wedged", "ROUTER_WEDGED_SECONDS"),
    _seconds("observe_interval", "ROUTER_OBSERVE_INTERVAL", "0.01"),
    _seconds("memory_interval", "ROUTER_MEMORY_INTERVAL"),
    _seconds("stop_timeout", "ROUTER_STOP_TIMEOUT"),
    _seconds("admin_wait_max", "ROUTER_ADMIN_WAIT_MAX", "1"),
)
SECRET_KEYS = ("api_keys", "tls_certificate", "tls_key")
"""Of `router_<key>`: what is never shown, kept in a release or rolled back."""


# ------------------------------------------------------------------------------------------------ secrets


@dataclass(frozen=True)
class Secrets:
    """What the public listener needs and nobody else may read. `api_keys` are hashed; None: no keys."""

    api_keys: tuple[Mapping[str, Any], ...] | None = None
    tls_certificate: str = field(default="", repr=False)
    tls_key: str = field(default="", repr=False)

    @property
    def has_tls(self) -> bool:
        return bool(self.tls_certificate and self.tls_key)

    def environment(self) -> dict[str, str]:
        """Where the router finds them in its container."""
        found = {} if self.api_keys is None else {"ROUTER_API_KEYS_FILE": f"/{API_KEYS}"}
        if self.has_tls:
            found |= {"ROUTER_TLS_CERTIFICATE": f"/{TLS_CERTIFICATE}", "ROUTER_TLS_KEY": f"/{TLS_KEY}"}
        return found

    def files(self) -> dict[str, bytes]:
        """Their files, by path below the root."""
        found: dict[str, bytes] = {}
        if self.api_keys is not None:
            document = {"schema_version": 1, "keys": [dict(key) for key in self.api_keys]}
            found[API_KEYS] = (json.dumps(document, indent=2) + "\n").encode()
        if self.has_tls:
            found |= {TLS_CERTIFICATE: self.tls_certificate.encode(), TLS_KEY: self.tls_key.encode()}
        return found


_KEY_READERS: Mapping[str, values.Reader[Any]] = {
    "name": values.matching(
        re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}"),
        "1 to 64 letters, digits and _ . @ -, beginning with a letter or digit",
    ),
    "key": values.word,
    "sha256": values.matching(re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits in lower case"),
    "concurrent": values.whole_number(1, 1_000_000, "requests"),
    "per_minute": values.whole_number(1, 10_000_000, "requests"),
}


def api_keys(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    """Named keys, hashed; None for an empty list. What is wrong is told without the keys themselves."""
    if not isinstance(value, list | tuple):
        raise WrongValueError(
            f"It is {values.kind_of(value)}; needed is a list of keys.", "Write [{name: alice, key: …}]."
        )
    keys = tuple(_api_key(position, item) for position, item in enumerate(value, 1))
    names = [key["name"] for key in keys]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WrongValueError(f"Two keys are called {twice[0]}.", "Give each key a name of its own.")
    return keys or None


def _api_key(position: int, item: Any) -> Mapping[str, Any]:
    remedy = "Write {name: alice, key: …} or {name: alice, sha256: …}; concurrent and per_minute are limits."
    if not isinstance(item, Mapping):
        raise WrongValueError(f"Key {position} is {values.kind_of(item)}.", remedy)
    given = {name: found for name, found in item.items() if found is not None}
    if unknown := sorted(str(name) for name in given if name not in _KEY_READERS):
        raise WrongValueError(f"Key {position} has no setting {unknown[0]}.", remedy)
    if "name" not in given or ("key" in given) == ("sha256" in given):
        raise WrongValueError(f"Key {position} needs a name and either key or sha256.", remedy)
    try:
        read = {name: _KEY_READERS[name](found) for name, found in given.items()}
    except WrongValueError as wrong:
        raise WrongValueError(f"Key {position}: {wrong.why}", wrong.remedy) from None
    if "key" in read:
        read["sha256"] = hashlib.sha256(read.pop("key").encode()).hexdigest()
    return dict(sorted(read.items()))


def pem(kind: str) -> values.Reader[str]:
    """A PEM text that holds at least one block of a kind such as CERTIFICATE or PRIVATE KEY."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValueError(f"It is {values.kind_of(value)}; needed is a PEM text.", "Write the text.")
        text = value.strip()
        if text and not re.search(
            rf"-----BEGIN [A-Z ]*{kind}-----.+?-----END [A-Z ]*{kind}-----", text, re.S
        ):
            raise WrongValueError(
                f"It holds no PEM block of a {kind.lower()}.",
                "Write the text itself, not a path, such as {{ lookup('ansible.builtin.file', 'tls.pem') }}.",
            )
        return f"{text}\n" if text else ""

    return read


SECRET_READERS: Mapping[str, values.Reader[Any]] = {
    "api_keys": api_keys,
    "tls_certificate": pem("CERTIFICATE"),
    "tls_key": pem("PRIVATE KEY"),
}
