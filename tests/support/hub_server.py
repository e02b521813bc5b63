"""A model hub: what the hub's client asks for when it downloads a model, with faults on order.

It speaks ``/api/models/OWNER/NAME[/revision/REVISION]`` and ``/OWNER/NAME/resolve/COMMIT/PATH`` with ETag,
X-Repo-Commit, X-Linked-* and ranges, as huggingface_hub 2.4.0 asks for them.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".safetensors", ".bin", ".gguf")
_PIECE_BYTES = 1 << 14


@dataclass
class Repository:
    """A repository, and what goes wrong with it. Faults name files; counts are used up."""

    files: dict[str, bytes]
    token: str = ""
    gated: bool = False
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main", COMMIT)
    cut_after_bytes: dict[str, int] = field(default_factory=dict)
    cuts: Counter[str] = field(default_factory=Counter)
    hang_after_bytes: dict[str, int] = field(default_factory=dict)
    damaged: Counter[str] = field(default_factory=Counter)
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    moved_to: str = ""


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    range: str
    authorization: str


class Hub(ThreadingHTTPServer):
    """The server; `asked` holds all requests."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.is_a_hub = True
        self.released = threading.Event()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    @property
    def endpoint(self) -> str:
        """Its address for a client on this machine."""
        return f"http://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error of the hub."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the tests' output clean."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        asked = Asked(
            self.command, self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")
        )
        self.server.asked.append(asked)
        if not self.server.is_a_hub:
            self._send(200, b"<html>welcome</html>", {"Content-Type": "text/html"})
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        name = "/".join(parts[2:4]) if parts[:2] == ["api", "models"] else "/".join(parts[:2])
        repository = self.server.repositories.get(name)
        token = asked.authorization.removeprefix("Bearer ")
        if repository is None or (repository.token and not repository.gated and token != repository.token):
            self._refuse(401 if not token else 404, "RepoNotFound")
        elif repository.gated and token != repository.token:
            self._refuse(403 if token else 401, "GatedRepo")
        elif parts[:2] == ["api", "models"]:
            revision = parts[5] if len(parts) > 5 else "main"
            self._describe(name, repository, revision)
        else:
            self._resolve(repository, parts[3], "/".join(parts[4:]))

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code})

    def _describe(self, name: str, repository: Repository, revision: str) -> None:
        if revision not in repository.revisions:
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [self._sibling(repository, path) for path in repository.files]
        document = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings}
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def _sibling(repository: Repository, path: str) -> dict[str, Any]:
        content = repository.files[path]
        size = repository.claimed_bytes.get(path, len(content))
        known: dict[str, Any] = {"rfilename": path, "size": size, "blobId": git_blob(content)}
        if path.endswith(_LARGE):
            known["lfs"] = {"size": size, "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
        return known

    def _resolve(self, repository: Repository, revision: str, path: str) -> None:
        content = repository.files.get(path)
        if revision not in repository.revisions or content is None:
            self._refuse(404, "EntryNotFound")
            return
        large = path.endswith(_LARGE)
        etag = hashlib.sha256(content).hexdigest() if large else git_blob(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        if large and repository.moved_to:
            self._send(302, b"", {**headers, "Location": repository.moved_to + self.path})
            return
        if self.command == "GET" and repository.damaged[path] > 0:
            repository.damaged[path] -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._head(206 if first else 200, len(content) - first, headers)
        if self.command == "GET":
            self._give(repository, path, content, first)

    def _give(self, repository: Repository, path: str, content: bytes, first: int) -> None:
        sent = 0
        for start in range(first, len(content), _PIECE_BYTES):
            if sent >= repository.cut_after_bytes.get(path, len(content)) and repository.cuts[path] > 0:
                repository.cuts[path] -= 1
                self.close_connection = True
                return
            if sent >= repository.hang_after_bytes.get(path, len(content)):
                self.server.released.wait()
                return
            piece = content[start : start + _PIECE_BYTES]
            self.wfile.write(piece)
            sent += len(piece)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


def git_blob(content: bytes) -> str:
    """The id that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[Hub]:
    """A hub that serves until the block ends."""
    hub = Hub(address)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        hub.shutdown()
        hub.server_close()
        thread.join(10)
