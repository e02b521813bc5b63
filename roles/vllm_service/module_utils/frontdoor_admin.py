"""The router's admin listener, as a deployment uses it: reload, park, prove."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

TRIES = 5
"""A router that has just been started, or is replaced by itself, answers a moment later."""
ANSWER_SECONDS = 30.0


class AdminError(Exception):
    """The router didn't do it: a sentence.

    `again` is true when the order didn't even reach it, `unknown` when it knows no such service.
    """

    def __init__(self, sentence: str, *, again: bool = False, unknown: bool = False) -> None:
        super().__init__(sentence)
        self.again = again
        self.unknown = unknown


class Router:
    """Orders to one router. Durations in seconds; every method raises AdminError."""

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file

    def reload(self) -> None:
        """Have it read its registry, keys and certificate again."""
        self._post("/admin/reload")

    def drain(self, service: str, deadline_seconds: float, limit_seconds: float) -> None:
        """Hold new requests, let those in flight end until the deadline, and keep it in maintenance."""
        query = {"deadline": f"{deadline_seconds:g}", "limit": f"{limit_seconds:g}"}
        self._post(self._path(service, "drain", query), deadline_seconds + ANSWER_SECONDS)

    def park(self, service: str, limit_seconds: float) -> None:
        """Hold requests and leave its engine alone."""
        self._post(self._path(service, "maintenance", {"limit": f"{limit_seconds:g}"}))

    def prove(self, service: str, timeout_seconds: float) -> dict[str, Any]:
        """Have the engine proven by its canary; only then requests are let through again."""
        path = self._path(service, "prove", {"timeout": f"{timeout_seconds:g}"})
        return self._post(path, timeout_seconds + ANSWER_SECONDS)

    @staticmethod
    def _path(service: str, order: str, query: dict[str, str]) -> str:
        return f"/admin/services/{urllib.parse.quote(service)}/{order}?{urllib.parse.urlencode(query)}"

    def _post(self, path: str, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(1)
            try:
                return post(f"{self._url}{path}", self._token_file, seconds)
            except AdminError as error:
                if not error.again or attempt == TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")


def post(url: str, token_file: Path, seconds: float) -> dict[str, Any]:
    """POST with the bearer token and return the answer's JSON object; raises AdminError."""
    shown = url.partition("?")[0]
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise AdminError(f"the token file cannot be read: {token_file}: {error.strerror}") from error
    headers = {"Authorization": f"Bearer {token}", "X-Operator": "deployment"}
    request = urllib.request.Request(url, data=b"", method="POST", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as response:
            answer = response.read()
    except urllib.error.HTTPError as error:
        body = error.read(2000).decode(errors="replace")
        sentence = f"{shown} answered {error.code}: {error_message(body)}"
        raise AdminError(sentence, unknown=error.code == 404) from error
    except (OSError, ValueError) as error:
        refused = isinstance(getattr(error, "reason", error), ConnectionError)
        raise AdminError(f"{shown} does not answer: {error}", again=refused) from error
    try:
        document = json.loads(answer or b"{}")
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def error_message(body: str) -> str:
    """The message in an error answer of the router, or the answer itself."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()
