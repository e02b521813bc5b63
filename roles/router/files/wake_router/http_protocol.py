"""uvicorn's HTTP/1.1 protocol with two differences: it serves plain paths only, and its own errors are JSON
too.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wake_router.openai_errors import bad_request

_NO_SUCH_TARGET = b"/-"
"""Stands for every request target that isn't a plain path; nothing is served there."""


class PublicProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def on_headers_complete(self) -> None:
        """Absolute and authority targets, `*` and fragments are for proxies and mistakes: 404."""
        if not self.url.startswith(b"/") or self.url.startswith(b"//") or b"#" in self.url:
            self.url = _NO_SUCH_TARGET
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what isn't HTTP, in OpenAI's shape."""
        body = bad_request(f"This is not a valid HTTP request: {msg}").body()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
