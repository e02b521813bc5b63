"""One running router and one awake engine: what clients get."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from router_log import assert_sound

from tests.standin.processes import HTTP, TOKEN, Engine, Router, wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine().start()
    yield engine
    engine.kill()


@pytest.fixture(scope="module")
def router(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    router = Router(tmp_path_factory.mktemp("router"), {"ROUTER_BODY_MAX_MIB": "1"})
    router.register(engine.registry_entry(), Engine(name="absent", model="Absent").registry_entry())
    router.start()
    assert router.order("services/text/wake").status_code == 200
    yield router
    router.stop()
    assert_sound(router.log())


def test_the_official_client(router: Router) -> None:
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="stand-in-1b", messages=[{"role": "user", "content": "Capital?"}], temperature=0
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    stream = client.chat.completions.create(
        model="text-ALIAS", messages=[{"role": "user", "content": "Capital?"}], stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "The capital of France is Paris."
    assert {model.id for model in client.models.list()} == {"Stand-In-1B", "Absent"}
    assert client.models.retrieve("TEXT").id == "Stand-In-1B"
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="nobody", prompt="x")
    assert error.value.code == "model_not_found"


def test_models_tell_their_depth(router: Router) -> None:
    data = HTTP.get(f"{router.url}/v1/models").json()["data"]
    assert {entry["id"]: entry["depth"] for entry in data} == {"Stand-In-1B": "awake", "Absent": "stopped"}


def test_the_request_id_goes_through(router: Router) -> None:
    assert router.chat("text", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    given = router.chat("text", headers={"X-Request-Id": "a b"}).headers.get_list("x-request-id")
    assert len(given) == 1
    assert re.fullmatch("[0-9a-f]{32}", given[0])


def test_an_event_stream_is_not_buffered(router: Router, engine: Engine) -> None:
    engine.fault(chunk_seconds=0.3)
    body = {"model": "text", "messages": [], "stream": True, "max_tokens": 3}
    with HTTP.stream("POST", f"{router.url}/v1/chat/completions", json=body) as response:
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["content-type"].startswith("text/event-stream")
        first = next(response.iter_bytes())
        assert b"The" in first
        assert b"[DONE]" not in first
    engine.fault(chunk_seconds=0.0)


def test_the_engines_own_errors_come_through(router: Router) -> None:
    answer = HTTP.post(f"{router.url}/v1/chat/completions", json={"model": "text"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/stand-in-1b", 200),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/text", 405),
        ("GET", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("GET", "/", 404),
        ("GET", "/metrics", 404),
        ("GET", "/admin/status", 404),
        ("POST", "/admin/reload", 404),
        ("POST", "/sleep", 404),
        ("POST", "/wake_up", 404),
        ("POST", "/collective_rpc", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/v1/chat/completions/render", 404),
        ("GET", "/docs", 404),
        ("POST", "/V1/chat/completions", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "//v1/chat/completions", 404),
        ("POST", "/v1//chat/completions", 404),
        ("POST", "/v1/./chat/completions", 404),
        ("POST", "/v1/chat/../../sleep", 404),
        ("POST", "/v1/chat%2Fcompletions", 404),
        ("POST", "/v1/%2e%2e/sleep", 404),
        ("POST", "/v1%252Fchat/completions", 404),
        ("POST", "/v1\\chat\\completions", 404),
        ("POST", "/v1/chat/completions%00", 404),
        ("POST", "/v1/chat/completions;x=1", 404),
    ],
)
def test_the_allow_list(router: Router, engine: Engine, method: str, path: str, status: int) -> None:
    before = len(engine.state()["calls"])
    head, _, body = _raw(router, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert int(head.split()[1]) == status
    if status >= 400:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    calls = [call["path"] for call in engine.state()["calls"][before:]]
    assert {path for path in calls if path not in ("/health", "/is_sleeping")} == set()


def _raw(router: Router, request: bytes) -> tuple[bytes, bytes, bytes]:
    with socket.create_connection(("127.0.0.1", router.port), timeout=5) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer.partition(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"{}", "model"),
        (b'{"model": 5}', "model"),
        (b"[]", None),
        (b"\xff\xfe", None),
    ],
)
def test_bad_bodies(router: Router, body: bytes, param: str | None) -> None:
    answer = HTTP.post(f"{router.url}/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large(router: Router) -> None:
    big = b'{"model": "text", "x": "' + b"y" * 1024 * 1024 + b'"}'
    answer = HTTP.post(f"{router.url}/v1/chat/completions", content=big)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert answer.json()["error"]["message"] == "The request's body is larger than 1 MiB."
    answer = HTTP.post(f"{router.url}/v1/chat/completions", content=iter([big[:600_000], big[600_000:]]))
    assert answer.status_code == 413


def test_a_path_that_the_models_engine_does_not_have(router: Router) -> None:
    answer = HTTP.post(f"{router.url}/v1/embeddings", json={"model": "text", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_supported")


def test_an_absent_engine_is_an_honest_503(router: Router) -> None:
    answer = router.chat("absent", headers={"Prefer": "wait=0"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "60"
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("model_waking", "model_waking", "model")
    assert (error["sleep_depth"], error["estimated_wake_seconds"]) == ("stopped", 60)


def test_headers_for_the_next_hop_stay_here(router: Router) -> None:
    headers = {"Connection": "x-private", "X-Private": "1", "Prefer": "wait=5", "Accept-Encoding": "identity"}
    answer = router.chat("text", headers=headers)
    assert answer.status_code == 200
    assert "connection" not in answer.headers


# ---- admin


def test_admin_needs_the_token(router: Router) -> None:
    url = f"{router.admin}/admin/services/text/pin"
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        answer = HTTP.post(url, headers=headers)
        assert answer.status_code == 401
        assert "Bearer" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:8010"}, 200),
        ({"Origin": "http://127.0.0.1:8010"}, 200),
    ],
)
def test_admin_is_not_for_web_pages(router: Router, headers: dict[str, str], status: int) -> None:
    for method, path in (("GET", "/admin/status"), ("POST", "/admin/reload")):
        given = {**headers, "Authorization": f"Bearer {TOKEN}"}
        assert HTTP.request(method, router.admin + path, headers=given).status_code == status


def test_admin_errors_are_sentences(router: Router) -> None:
    assert "no service 'none'" in router.order("services/none/wake").json()["error"]["message"]
    assert router.order("services/none/wake").status_code == 404
    assert router.order("services/text/wake?timeout=-1").status_code == 400
    assert router.order("services/text/dance").status_code == 404
    refused = router.order("services/text/restart")
    assert refused.status_code == 409
    assert "restart its container" in refused.json()["error"]["message"]
    assert router.order("services/none/restart").status_code == 404
    late = router.order("services/absent/wake?timeout=0.2")
    assert late.status_code == 504
    assert "absent" in late.json()["error"]["message"]


def test_pinning(router: Router) -> None:
    assert router.order("services/text/pin").json()["pinned"] is True
    assert router.status("text")["pinned"] is True
    for order in ("sleep", "offload"):
        refused = router.order(f"services/text/{order}")
        assert refused.status_code == 409
        assert "unpin" in refused.json()["error"]["message"]
    assert router.order("services/text/unpin").json()["pinned"] is False


def test_metrics(router: Router) -> None:
    assert router.chat("text").status_code == 200
    text = HTTP.get(f"{router.admin}/metrics").text
    assert 'frontdoor_depth{depth="awake",service="text"} 1.0' in text
    assert re.search(r'frontdoor_requests_total{key="",service="text",status="200"} [1-9]', text)


def test_one_line_per_request_without_content(router: Router) -> None:
    secret = "a-word-that-must-not-be-logged"
    answer = router.chat("text", user=secret, headers={"X-Request-Id": "line-1"})
    assert answer.status_code == 200
    line = wait_until(lambda: [each for each in router.events("request") if each["id"] == "line-1"])
    assert len(line) == 1
    assert (line[0]["service"], line[0]["status"]) == ("text", 200)
    assert secret not in router.log()
    assert TOKEN not in router.log()


def test_a_port_in_use_is_a_sentence(router: Router, tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    environment = {
        **os.environ,
        "PYTHONPATH": "roles/router/files",
        "FRONTDOOR_REGISTRY": str(router.folder / "registry.json"),
        "ROUTER_PUBLIC_ADDRESS": f"127.0.0.1:{router.port}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "wake_router"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "can't listen" in done.stderr
    assert "Traceback" not in done.stderr
