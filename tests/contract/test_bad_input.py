"""Bad input gets the right 4xx in OpenAI's shape, wakes nothing, breaks nothing, and never reaches an
engine.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wake_router.surface import FORM_PATHS, JSON_PATHS

from tests.standin.processes import HTTP, Engine, Router

pytestmark = pytest.mark.stand_in_only("bad input, which no engine may see")

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"]
PATHS = [
    *JSON_PATHS,
    *FORM_PATHS,
    "/v1/models",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/health",
]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine().start()
    yield engine
    engine.kill()


@pytest.fixture(scope="module")
def router(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """An engine that sleeps, so that a request that got through would show as a wake."""
    router = Router(tmp_path_factory.mktemp("router"), {"ROUTER_BODY_MAX_MIB": "1"})
    router.register(engine.registry_entry())
    router.start()
    router.order("services/text/wake")
    router.order("services/text/sleep")
    before = len(engine.calls("/v1")) + len(engine.calls("/wake_up"))
    yield router
    try:
        assert router.status("text")["depth"] == "sleeping"
        assert len(engine.calls("/v1")) + len(engine.calls("/wake_up")) == before
        assert router.process is not None
        assert router.process.poll() is None
    finally:
        router.stop()
    assert "internal_error" not in router.log()
    assert "Traceback" not in router.log()


def assert_openai_error(status: int, body: bytes) -> None:
    assert 400 <= status < 500, (status, body)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


@quick
@given(document=json_values, path=st.sampled_from(JSON_PATHS))
def test_any_json_without_our_model(router: Router, document: object, path: str) -> None:
    answer = HTTP.post(f"{router.url}{path}", content=json.dumps(document).encode())
    assert_openai_error(answer.status_code, answer.content)


@quick
@given(body=st.binary(max_size=200), path=st.sampled_from([*JSON_PATHS, *FORM_PATHS]))
def test_any_bytes(router: Router, body: bytes, path: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = HTTP.post(f"{router.url}{path}", content=body, headers=headers)
    assert_openai_error(answer.status_code, answer.content)


@quick
@given(
    fields=st.dictionaries(st.sampled_from(["messages", "stream", "max_tokens", "x"]), json_values),
    model=st.none()
    | st.booleans()
    | st.integers()
    | st.lists(st.text())
    | st.sampled_from(["", " text", "text\n"]),
)
def test_any_request_with_a_wrong_model(router: Router, fields: dict[str, object], model: object) -> None:
    answer = HTTP.post(f"{router.url}/v1/chat/completions", json={**fields, "model": model})
    assert_openai_error(answer.status_code, answer.content)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
def test_every_method_on_every_path(router: Router, method: str, path: str) -> None:
    status, body = exchange(
        router, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    )
    if (method in ("GET", "HEAD") and path in ("/v1/models", "/health")) or status == 0:
        return
    assert 400 <= status < 500
    if method != "HEAD" and body.startswith(b"{"):
        assert_openai_error(status, body)


@pytest.mark.parametrize(
    "wish",
    [
        "http://127.0.0.1/v1/chat/completions",
        "http://evil.example/v1/chat/completions",
        "*",
        "v1/chat/completions",
        "/v1/chat/completions#x",
        "//evil.example/v1/chat/completions",
        "/v1/chat%2fcompletions",
        "/v1/%2e/chat/completions",
        "/v1/models/../chat/completions",
        "/%76%31/chat%2Fcompletions",
        "/v1/chat/completions%20",
        "/v1/chat/completions%0d%0aX:%20y",
        "/" + "a" * 20_000,
    ],
)
def test_targets(router: Router, wish: str) -> None:
    body = b'{"model": "text", "messages": []}'
    head = f"POST {wish} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    status, _ = exchange(router, head.encode() + body)
    assert 400 <= status < 500


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 33\r\n",
        b"Content-Length: 33\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1e3\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"X: " + b"y" * 100_000 + b"\r\n",
        b"No colon\r\n",
        b": empty\r\n",
    ],
)
def test_conflicting_heads(router: Router, head: bytes) -> None:
    body = b'{"model": "nobody", "messages": []}'
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n" + body
    )
    status, _ = exchange(router, request)
    assert status == 0 or 400 <= status < 500


def test_an_endless_form_is_ended(router: Router) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"y" * 60_000 + b"\r\n"
    answer = HTTP.post(
        f"{router.url}/v1/audio/transcriptions",
        content=(part for _ in range(100)),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 413


def test_random_bytes_on_the_socket(router: Router) -> None:
    chance = random.Random(20)
    seeds = [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 35\r\n\r\n"
        b'{"model": "nobody", "messages": []}',
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
    for _ in range(400):
        request = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 12)):
            request[chance.randrange(len(request))] = chance.randrange(256)
        status, _ = exchange(router, bytes(request) + b"\r\n\r\n", wait=0.05)
        assert status < 500
    assert HTTP.get(f"{router.url}/health").status_code == 200


def exchange(router: Router, request: bytes, wait: float = 5.0) -> tuple[int, bytes]:
    """Status and body of the first answer; status 0 when the connection just ends or nothing comes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", router.port), timeout=wait) as connection:
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
        except OSError:
            pass  # a cut connection is an answer too; what came before it counts
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0), body
