"""Errors in the shape that OpenAI's clients understand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wake_router.lifecycle import Depth


@dataclass(kw_only=True, eq=False)
class AnswerError(Exception):
    """An error response; raised where the request can't be answered otherwise."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def document(self) -> dict[str, Any]:
        """The body as data."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.extra}}

    def body(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.document()).encode()

    def server_sent_event(self) -> bytes:
        """The same as an SSE event, which ends whatever line a broken stream stopped in."""
        return b"\n\nevent: error\ndata: " + self.body() + b"\n\n"


def router_failed() -> AnswerError:
    """500 for a mistake in this program."""
    return AnswerError(
        status=500,
        message="The front door itself failed; its log says more, under this answer's X-Request-Id.",
        type="server_error",
        code="internal_error",
    )


def path_not_found(method: str, path: str) -> AnswerError:
    """404 for everything that isn't on the allow-list."""
    return AnswerError(status=404, message=f"There is no {method} {path[:200]} here.", code="unknown_url")


def method_not_allowed(method: str, path: str, allowed: str) -> AnswerError:
    """405 for a known path."""
    return AnswerError(
        status=405,
        message=f"{path} takes {allowed}, not {method}.",
        code="method_not_allowed",
        headers=((b"allow", allowed.encode()),),
    )


def model_not_found(name: str) -> AnswerError:
    """404 for a name that no service has."""
    return AnswerError(
        status=404,
        message=f"The model '{name[:200]}' does not exist. GET /v1/models lists those that do.",
        code="model_not_found",
        param="model",
    )


def response_not_found(name: str) -> AnswerError:
    """404 for an id that no engine here has made, or so long ago that it is forgotten."""
    return AnswerError(
        status=404,
        message=f"Response '{name}' is not known here.",
        code="response_not_found",
        param="response_id",
    )


def task_not_supported(model: str, path: str) -> AnswerError:
    """404 for a path that the model's engine doesn't have."""
    return AnswerError(
        status=404,
        message=f"The model '{model}' does not support {path}.",
        code="model_not_supported",
        param="model",
    )


def bad_request(message: str, param: str | None = None, code: str | None = None) -> AnswerError:
    """400."""
    return AnswerError(status=400, message=message, param=param, code=code)


def _size(count: int) -> str:
    """A number of bytes in the largest unit that leaves it whole."""
    for unit, length in (("MiB", 1024 * 1024), ("KiB", 1024)):
        if count >= length and count % length == 0:
            return f"{count // length} {unit}"
    return f"{count} bytes"


def body_too_large(limit_bytes: int) -> AnswerError:
    """413."""
    return AnswerError(
        status=413,
        message=f"The request's body is larger than {_size(limit_bytes)}.",
        code="request_too_large",
    )


def head_too_large(limit_bytes: int) -> AnswerError:
    """431 for a request line with headers that don't end."""
    return AnswerError(
        status=431,
        message=f"The request's line and headers are larger than {_size(limit_bytes)}.",
        code="request_head_too_large",
    )


def head_too_slow(limit_seconds: float) -> AnswerError:
    """408 for a client that doesn't come to an end with its head."""
    return AnswerError(
        status=408,
        message=f"The request's line and headers weren't complete within {limit_seconds:g} s.",
        code="request_timeout",
    )


def not_a_websocket(path: str) -> AnswerError:
    """426 for a request that should have been a websocket's handshake."""
    return AnswerError(
        status=426,
        message=f"{path} is a websocket: it takes GET with a valid handshake of version 13 (RFC 6455).",
        code="websocket_required",
        headers=((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")),
    )


_WHAT_IT_DOES = {
    Depth.SLEEPING: "is waking from sleep",
    Depth.OFFLOADED: "is waking from offload",
    Depth.RESTARTING: "is starting",
    Depth.STOPPED: "is not running at the moment",
}
CORDON_SECONDS = 60.0
"""When to ask again for a model whose device is cordoned: when that ends, no client can know."""


def model_waking(
    model: str,
    depth: Depth,
    estimate_seconds: float,
    retry_after_seconds: int,
    detail: str = "",
    *,
    what: str | None = None,
) -> AnswerError:
    """503 for a request that waited as long as it may, or can't wait at all.

    `what` the model does follows from `depth` where nothing else holds.
    """
    what = what or _WHAT_IT_DOES.get(depth, "is not ready yet")
    estimate = max(1, round(estimate_seconds))
    return AnswerError(
        status=503,
        message=f"Model '{model}' {what}{detail}; retry in {estimate} s",
        type="model_waking",
        code="model_waking",
        param="model",
        extra={"sleep_depth": depth.value, "estimated_wake_seconds": estimate},
        headers=((b"retry-after", str(retry_after_seconds).encode()),),
    )


def model_quarantined(
    model: str, depth: Depth, reason: str, estimate_seconds: float, retry_after: int
) -> AnswerError:
    """503 for a service that the router doesn't trust until it has repaired it."""
    estimate = max(1, round(estimate_seconds))
    return AnswerError(
        status=503,
        message=f"Model '{model}' is being repaired and can't be trusted until then: {reason}; "
        f"retry in {estimate} s",
        type="model_quarantined",
        code="model_quarantined",
        param="model",
        extra={"sleep_depth": depth.value, "estimated_wake_seconds": estimate},
        headers=((b"retry-after", str(retry_after).encode()),),
    )


def router_stopping() -> AnswerError:
    """503 while the router stops."""
    return AnswerError(
        status=503,
        message="The front door is restarting; retry in 5 s",
        type="router_stopping",
        code="router_stopping",
        headers=((b"retry-after", b"5"), (b"connection", b"close")),
    )


def engine_failed(model: str, reason: str) -> AnswerError:
    """502 for an engine that took the request and broke off before it answered."""
    return AnswerError(
        status=502,
        message=f"The engine of model '{model}' failed while it worked on this request: {reason}",
        type="engine_error",
        code="engine_failed",
        headers=((b"retry-after", b"10"),),
    )


def engine_broke_off(model: str) -> AnswerError:
    """For a stream whose engine died in the middle; goes out as an SSE event."""
    return AnswerError(
        status=502,
        message=f"The engine of model '{model}' failed in the middle of this answer, which is incomplete.",
        type="engine_error",
        code="engine_failed",
    )
