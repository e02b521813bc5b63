"""A listener for a balancer's checks, which can do nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

from wake_router.proxy import Receive, Scope, Send


class BalancerHealth:
    """The ASGI application of the health listener: 200 while new work is welcome, 503 while the router
    stops.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one check."""
        known = scope["path"] in ("/", "/health") and scope["method"] in ("GET", "HEAD")
        status, word = (503, "stopping") if self._is_stopping() else (200, "ok")
        if not known:
            status, word = 404, "not here"
        body = json.dumps({"status": word}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
