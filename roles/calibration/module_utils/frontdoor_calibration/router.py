"""The router's admin listener, as a calibration uses it. All durations in seconds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

_ANSWER_SECONDS = 30.0


class RouterError(Exception):
    """The router didn't do it; the message is a sentence. `status` is its answer's, 0 where there was
    none."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Service:
    """A service as the router tells of it."""

    name: str
    model: str
    depth: str
    conditions: tuple[str, ...]
    in_flight: int
    held: int
    idle_seconds: float
    pinned: bool
    restartable: bool
    reason: str

    @property
    def busy(self) -> bool:
        """Whether a client waits for it or for its answer."""
        return self.in_flight > 0 or self.held > 0


class Admin:
    """One router, found as `vllmctl` finds it: by what it was deployed with. Every method raises
    RouterError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A proxy of the environment has no business on the loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def services(self) -> dict[str, Service]:
        """All services by name."""
        answer = self._ask("GET", "/admin/status", _ANSWER_SECONDS)
        try:
            return {str(each["name"]): _service(each) for each in answer["services"]}
        except (KeyError, TypeError, ValueError) as error:
            raise RouterError(f"the router's status has another form ({error!r}): deploy again") from None

    def service(self, name: str) -> Service:
        """One service."""
        found = self.services().get(name)
        if found is None:
            raise RouterError(f"the router knows no service '{name}'", 404)
        return found

    def order(self, name: str, order: str, **query: float) -> dict[str, Any]:
        """Order something for a service, and wait until it is done; `timeout` bounds that in seconds."""
        words = f"?{urlencode({key: f'{value:g}' for key, value in query.items()})}" if query else ""
        seconds = query.get("timeout", 0.0) + _ANSWER_SECONDS
        return self._ask("POST", f"/admin/services/{quote(name, safe='')}/{order}{words}", seconds)

    def _ask(self, method: str, path: str, seconds: float) -> dict[str, Any]:
        headers = {"X-Operator": "calibration"}
        if method == "POST":
            headers["Authorization"] = f"Bearer {self._token()}"
        url = self._url()
        data = b"" if method == "POST" else None
        request = urllib.request.Request(url + path, data=data, method=method, headers=headers)
        try:
            with self._opener.open(request, timeout=seconds) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise RouterError(_said_by(error), error.code) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RouterError(f"the router's admin listener {url} does not answer ({reason})") from error
        if not isinstance(answer, dict):
            raise RouterError(f"{url} answered something that is no JSON object")
        return answer

    def _token(self) -> str:
        return self._read("secrets/admin-token").strip()

    def _url(self) -> str:
        lines = self._read("router/router.env").splitlines()
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        address = settings.get("ROUTER_ADMIN_ADDRESS", "").strip("'\"")
        if not address:
            raise RouterError(
                f"{self._root}/router/router.env doesn't say ROUTER_ADMIN_ADDRESS: deploy again"
            )
        return f"http://{address}"

    def _read(self, name: str) -> str:
        path = self._root / name
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise RouterError(
                f"{path} can't be read ({error.strerror}): calibrating needs a deployed router and "
                "`become: true`"
            ) from error


def _said_by(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"]).rstrip(".")
    except (OSError, ValueError, KeyError, TypeError):
        return f"the router answered {error.code} without a sentence"


def _service(document: Mapping[str, Any]) -> Service:
    return Service(
        name=str(document["name"]),
        model=str(document["model"]),
        depth=str(document["depth"]),
        conditions=tuple(map(str, document["conditions"])),
        in_flight=int(document["in_flight"]),
        held=int(document["held"]),
        idle_seconds=float(document["idle_seconds"]),
        pinned=bool(document["pinned"]),
        restartable=bool(document["restartable"]),
        reason=str(document["reason"]),
    )
