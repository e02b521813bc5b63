"""The router's admin listener, as the diagnostics use it: services and their devices, orders, events.

Standard library only: the watcher and Ansible modules carry it (the latter by a link in ``module_utils``).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlencode

Json = dict[str, object]

_ANSWER_SECONDS = 15.0
# The router sends a comment each 15 s on a stream on which nothing happens.
_SILENCE_SECONDS = 60.0
# At these depths the router holds the weights out of the GPU's memory, or there is no process.
_DEPTHS_WITHOUT_MEMORY = ("sleeping", "offloaded", "stopped")


class RouterError(Exception):
    """The router refuses an order, or its token can't be read; the message is a sentence."""


class NoAnswerError(RouterError):
    """The router can't be asked; the message is a sentence."""


@dataclass(frozen=True)
class Service:
    """A service as the router tells of it."""

    name: str
    depth: str
    devices: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    reason: str = ""
    since_seconds: float = 0.0

    @property
    def uses_memory(self) -> bool:
        """Whether its weights may lie in its GPUs' memory."""
        return self.depth not in _DEPTHS_WITHOUT_MEMORY


@dataclass(frozen=True)
class Status:
    """What the router tells: services, and devices on which nothing is woken."""

    services: tuple[Service, ...] = ()
    cordoned: frozenset[str] = frozenset()


class Admin:
    """The router's admin listener, found as `vllmctl` finds it: from what the router was deployed with."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A proxy of the environment has no business on the loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def status(self) -> Status:
        """Services and cordoned devices. Raises NoAnswerError."""
        answer = self._ask("/admin/status", "GET", {}, _ANSWER_SECONDS)
        return parse_status(answer)

    def order(self, path: str, timeout_seconds: float | None = None) -> None:
        """POST with the operator's token. Raises RouterError with the router's own sentence."""
        query = f"?{urlencode({'timeout': f'{timeout_seconds:g}'})}" if timeout_seconds else ""
        headers = {"Authorization": f"Bearer {self._token()}", "X-Operator": "gpu_diag"}
        self._ask(f"/admin/{path}{query}", "POST", headers, (timeout_seconds or 0) + _ANSWER_SECONDS)

    def events(self) -> Iterator[Json]:
        """What happens from now on, until the router ends the stream: it listens when this returns.

        Raises NoAnswerError, also while it is read.
        """
        url = f"{self.url()}/admin/events"
        try:
            stream = self._opener.open(url, timeout=_SILENCE_SECONDS)
        except (OSError, ValueError, HTTPException) as error:
            raise NoAnswerError(f"{url} does not answer ({error})") from error
        return _read_stream(stream, url)

    def _token(self) -> str:
        path = self._root / "secrets" / "admin-token"
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RouterError(
                f"the router's admin token {path} can't be read ({error.strerror}): the play needs "
                "`become: true`, and a deployed router"
            ) from error

    def url(self) -> str:
        """Where it listens. Raises NoAnswerError where no router was deployed."""
        path = self._root / "router" / "router.env"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise NoAnswerError(f"no router is deployed ({path}: {error.strerror})") from error
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        address = settings.get("ROUTER_ADMIN_ADDRESS", "").strip("'\"")
        if not address:
            raise NoAnswerError(f"{path} does not say ROUTER_ADMIN_ADDRESS: deploy the router again")
        return f"http://{address}"

    def _ask(self, path: str, method: str, headers: Mapping[str, str], seconds: float) -> object:
        url = self.url()
        request = urllib.request.Request(
            url + path, data=b"{}" if method == "POST" else None, method=method,
            headers={"Content-Type": "application/json", **headers},
        )  # fmt: skip
        try:
            with self._opener.open(request, timeout=seconds) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise RouterError(_said_by(error)) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswerError(f"the router's admin listener {url} does not answer ({reason})") from error


def _said_by(error: urllib.error.HTTPError) -> str:
    try:
        # Whoever quotes this ends the sentence.
        said = str(json.load(error)["error"]["message"]).removesuffix(".")
    except (OSError, ValueError, KeyError, TypeError):
        said = "no sentence"
    return f"the router refuses ({error.code}): {said}"


def parse_status(answer: object) -> Status:
    """The services out of the answer to GET /admin/status. Pure; raises NoAnswerError for another form."""
    services = answer.get("services") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(services, list):
        raise NoAnswerError("the router's admin listener answered something that is not its status")
    cordoned = answer.get("cordoned")
    return Status(
        tuple(
            Service(
                str(one["name"]),
                str(one["depth"]),
                tuple(map(str, one.get("devices") or ())),
                tuple(map(str, one.get("conditions") or ())),
                str(one.get("reason") or ""),
                float(one.get("since_seconds") or 0.0),
            )
            for one in services
            if isinstance(one, dict) and {"name", "depth"} <= set(one)
        ),
        frozenset(map(str, cordoned)) if isinstance(cordoned, list) else frozenset(),
    )


def _read_stream(stream: HTTPResponse, url: str) -> Iterator[Json]:
    try:
        with stream:
            yield from parse_stream(line.decode(errors="replace") for line in stream)
    except (OSError, ValueError, HTTPException) as error:
        raise NoAnswerError(f"{url} broke off ({error})") from error


def parse_stream(lines: Iterable[str]) -> Iterator[Json]:
    """The events in a stream of server-sent events, one line of data each. Pure; other lines say nothing."""
    for line in lines:
        if line.startswith("data:"):
            try:
                event = json.loads(line.removeprefix("data:"))
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
