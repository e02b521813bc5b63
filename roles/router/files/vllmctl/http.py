"""HTTP to the router, with sentences for what goes wrong. Durations in seconds."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from vllmctl.errors import CommandError

QUICK_SECONDS = 15.0
STREAM_SECONDS = 120.0
"""Without a byte, until a stream is given up; the router says at least every 15 s that nothing happens."""

Json = dict[str, Any]


class RefusedError(CommandError):
    """The router answered, with an error. `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _on_this_machine() -> ssl.SSLContext:
    """For TLS to this very machine: its certificate names what clients call it, not its loopback address."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_on_this_machine())
)


def get(url: str, seconds: float = QUICK_SECONDS) -> Json:
    """The JSON object at an address; raises CommandError."""
    with _opened(urllib.request.Request(url), seconds) as answer:
        return _object(answer.read(), url)


def get_text(url: str) -> str:
    """The text at an address; raises CommandError."""
    with _opened(urllib.request.Request(url), QUICK_SECONDS) as answer:
        return answer.read().decode("utf-8", "replace")


def post(url: str, token: str, seconds: float, operator: str) -> Json:
    """An order to the admin surface; raises CommandError."""
    headers = {"Authorization": f"Bearer {token}", "X-Operator": operator}
    request = urllib.request.Request(url, data=b"", headers=headers, method="POST")
    with _opened(request, seconds) as answer:
        return _object(answer.read(), url)


def lines(url: str, body: Json | None = None, headers: dict[str, str] | None = None) -> Iterator[str]:
    """The lines of a streamed answer as they come; raises CommandError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {})
    if data is not None:
        request.add_header("Content-Type", "application/json")
    with _opened(request, 3600.0 if data is not None else STREAM_SECONDS) as answer:
        for line in answer:
            yield line.decode("utf-8", "replace").rstrip("\r\n")


@contextmanager
def _opened(request: urllib.request.Request, seconds: float) -> Iterator[IO[bytes]]:
    url = request.full_url
    try:
        with _OPENER.open(request, timeout=seconds) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        raise RefusedError(error.code, _what_it_says(error)) from None
    except TimeoutError:
        raise CommandError(f"The router at {_origin(url)} did not answer within {seconds:.0f} s.") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise CommandError(
                f"The router at {_origin(url)} did not answer within {seconds:.0f} s."
            ) from None
        reason = getattr(reason, "strerror", None) or reason or type(error).__name__
        raise CommandError(
            f"The router at {_origin(url)} does not answer ({reason}); look with: vllmctl logs 50 router"
        ) from None


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _what_it_says(error: urllib.error.HTTPError) -> str:
    """The sentence in an error's body, of the admin surface or in OpenAI's shape."""
    try:
        message = json.loads(error.read())["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError):
        return f"The router answered {error.code} to {error.url}, without a reason."
    return str(message)


def _object(body: bytes, url: str) -> Json:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CommandError(f"What answers at {_origin(url)} is not the router: it sends no JSON object.")
    return document
