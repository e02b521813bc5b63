"""What an engine gets and what a client gets, byte by byte: in front of an engine that is a script."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.keys import keys_file
from tests.standin.processes import HTTP, Router

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
DROP = b""
"""An answer that ends the connection before it begins."""


class Script(socketserver.ThreadingTCPServer):
    """An engine that is awake, keeps what it is sent, and answers questions with what it is told."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.started = time.time()
        self.proven = False
        self.requests: list[tuple[list[bytes], bytes]] = []
        self.answers: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, target: bytes, lines: list[bytes], body: bytes) -> bytes:
        """What to say to a request."""
        if target.startswith(b"/v1/") and self.proven:
            self.requests.append((lines, body))
            return self.answers.pop(0) if self.answers else OK
        content = b'{"is_sleeping": false, "choices": []}'
        if target == b"/metrics":
            content = b"process_start_time_seconds %f\n" % self.started
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content


class _Connection(socketserver.StreamRequestHandler):
    server: Script

    def handle(self) -> None:
        """Answer one request after the other; an answer without a proper end closes the connection."""
        while line := self.rfile.readline():
            lines = [line.rstrip()]
            while (header := self.rfile.readline().rstrip()) != b"":
                lines.append(header)
            sizes = [
                int(each.split(b":")[1]) for each in lines if each.lower().startswith(b"content-length:")
            ]
            body = self.rfile.read(sizes[0]) if sizes else b""
            answer = self.server.answer(line.split()[1], lines, body)
            self.wfile.write(answer)
            if answer == DROP or b"cut" in answer:
                return


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as script:
        yield script
        script.shutdown()


@pytest.fixture
def started(script: Script, routers: Callable[..., Router]) -> Callable[..., Router]:
    """Starts a router in front of the script."""

    def start(**environment: str) -> Router:
        router = routers(**environment)
        entry = {"name": "text", "model": "org/Model", "base_url": script.url, "devices": ["cpu:x"]}
        router.register(entry)
        router.start()
        assert router.order("services/text/wake").status_code == 200
        script.proven = True
        return router

    return start


def ask(router: Router, content: bytes = b'{"model": "text"}', **extra: str | bytes) -> httpx.Response:
    """Ask with these headers on top of the usual ones."""
    headers = [(b"content-type", b"application/json")]
    for name, value in extra.items():
        headers.append((name.replace("_", "-").encode(), value.encode() if isinstance(value, str) else value))
    return HTTP.post(f"{router.url}/v1/completions?x=1", content=content, headers=headers)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (b'{"model": "text"}', b'{"model": "org/Model"}'),
        (b'\r\n{ "x" : [1.0e+2 ,\t"\xc3\xa9\\u00e9"], "model":"TEXT" , "x":1}\n', None),
        (b'{"a": {"model": "text"}, "model": "te\\u0078t", "b": "\\"model\\": \\"text\\""}', None),
        (b'{"model": "org/model", "x": 123456789012345678901234567890.50}', None),
    ],
)
def test_only_the_name_changes(
    script: Script, started: Callable[..., Router], sent: bytes, got: bytes | None
) -> None:
    assert ask(started(), sent).status_code == 200
    lines, body = script.requests[0]
    assert lines[0] == b"POST /v1/completions HTTP/1.1", "a query is no part of the surface"
    for name in (b'"TEXT"', b'"te\\u0078t"', b'"org/model"'):
        if got is None and name in sent:
            got = sent.replace(name, b'"org/Model"')
    assert body == got


def test_headers_to_the_engine(script: Script, started: Callable[..., Router]) -> None:
    ask(
        started(),
        Connection="X-Private, keep-alive",
        X_Private="1",
        TE="trailers",
        Prefer="wait=5",
        Proxy_Authorization="x",
        Authorization="Bearer mine",
        X_Custom=b"caf\xe9",
        X_Request_Id="id-1",
    )
    lines, _ = script.requests[0]
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
    assert headers[b"x-custom"] == b"caf\xe9"
    assert headers[b"authorization"] == b"bearer mine", "the router needs no key, so it is for the engine"
    assert headers[b"x-request-id"] == b"id-1"
    assert headers[b"host"] == script.url.removeprefix("http://").encode()
    assert headers[b"content-length"] == b"22"
    gone = {b"connection", b"x-private", b"te", b"prefer", b"proxy-authorization", b"keep-alive"}
    assert not gone & set(headers)


def test_keys_stay_here(script: Script, started: Callable[..., Router], tmp_path: Path) -> None:
    router = started(ROUTER_API_KEYS_FILE=str(keys_file(tmp_path, "one")))
    assert ask(router, Authorization="Bearer one").status_code == 200
    assert ask(router, X_Api_Key="one").status_code == 200
    assert len(script.requests) == 2
    for lines, _ in script.requests:
        assert not any(line.lower().startswith((b"authorization", b"x-api-key")) for line in lines)


def test_an_answer_comes_as_it_is(script: Script, started: Callable[..., Router]) -> None:
    content = bytes(range(256))
    script.answers = [
        b"HTTP/1.1 418 Teapot\r\nContent-Type: audio/wav\r\nX-A: 1\r\nX-A: 2\r\nConnection: x-b\r\nX-B: 1\r\n"
        b"Access-Control-Allow-Origin: *\r\nKeep-Alive: timeout=5\r\nContent-Encoding: br\r\n"
        b"Content-Length: 256\r\n\r\n" + content
    ]
    router = started()
    with HTTP.stream("POST", f"{router.url}/v1/completions", json={"model": "text"}) as answer:
        assert b"".join(answer.iter_raw()) == content
    assert answer.status_code == 418
    assert answer.headers.get_list("x-a") == ["1", "2"]
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["content-encoding"] == "br"
    gone = {"connection", "x-b", "access-control-allow-origin", "keep-alive", "transfer-encoding"}
    assert not gone & set(answer.headers)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{cut",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ncut\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: cut\n\n",
    ],
)
def test_a_cut_answer_looks_cut(script: Script, started: Callable[..., Router], answer: bytes) -> None:
    script.answers = [answer]
    with pytest.raises(httpx.RemoteProtocolError):
        ask(started())


def test_a_cut_stream_ends_with_an_error(script: Script, started: Callable[..., Router]) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    )
    script.answers = [head + b"\r\nb\r\ndata: cut\n\n\r\n"]
    answer = ask(started())
    assert answer.headers["x-accel-buffering"] == "no"
    first, last = [event for event in answer.text.split("\n\n") if event.strip()]
    assert first == "data: cut"
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ", 1)[1])["error"]["code"] == "engine_failed"


def test_a_connection_that_closes_under_a_request_is_no_failure(
    script: Script, started: Callable[..., Router]
) -> None:
    script.answers = [OK, DROP, OK]
    router = started()
    assert [ask(router).status_code for _ in range(2)] == [200, 200]
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-cut\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\ncut", b"HTTP/1.1 200 OK\r\ncut"],
)
def test_what_is_no_answer(script: Script, started: Callable[..., Router], answer: bytes) -> None:
    script.answers = [answer, answer]
    refused = ask(started())
    assert refused.status_code == 502
    assert refused.json()["error"]["code"] == "engine_failed"
