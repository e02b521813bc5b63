"""Forms, websockets, response ids, keys, pages of browsers, certificates, large bodies: in front of a
stand-in.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest
from router_log import assert_sound

from tests.contract.keys import keys_file
from tests.standin.ports import free_port
from tests.standin.processes import HTTP, Engine, Router, wait_until

pytestmark = pytest.mark.stand_in_only("keys, certificates, pages of browsers, listeners, bodies that wait")

Engines = Callable[..., Engine]
Routers = Callable[..., Router]
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine().start()
    yield engine
    engine.kill()


@pytest.fixture(scope="module")
def router(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    router = Router(tmp_path_factory.mktemp("router"), {"ROUTER_CORS_ORIGINS": ORIGIN})
    router.register(engine.registry_entry())
    router.start()
    router.order("services/text/wake")
    yield router
    router.kill()
    assert_sound(router.log())


# ---- official clients


@pytest.mark.stand_in_only("official clients", instead="tests/real/test_official_clients.py")
def test_openai_retries_until_the_model_is_there(engines: Engines, routers: Routers) -> None:
    sleeper = engines()
    router = routers(ROUTER_HOLD_SLEEPING="0", ROUTER_RETRY_AFTER_MAX="1")
    router.register(sleeper.registry_entry())
    router.start()
    router.order("services/text/wake")
    router.order("services/text/sleep")
    sleeper.fault(wake_seconds=1.0)
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=4)
    answer = client.chat.completions.create(model="text", messages=[{"role": "user", "content": "Capital?"}])
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert next(each["status"] for each in router.events("request")) == 503


@pytest.mark.stand_in_only("official clients", instead="tests/real/test_official_clients.py")
def test_openai_responses(router: Router) -> None:
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    made = client.responses.create(model="TEXT", input="Capital of France?")
    assert made.output_text == "The capital of France is Paris."
    assert client.responses.retrieve(made.id).id == made.id
    assert client.responses.cancel(made.id).id == made.id
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")


@pytest.mark.stand_in_only("official clients", instead="tests/real/test_official_clients.py")
def test_anthropic(router: Router) -> None:
    client = anthropic.Anthropic(base_url=router.url, api_key="none", max_retries=0)
    question: Any = [{"role": "user", "content": "Capital of France?"}]
    answer = client.messages.create(model="text", max_tokens=20, messages=question)
    assert "Paris" in answer.content[0].text  # type: ignore[union-attr]
    with client.messages.stream(model="text", max_tokens=20, messages=question) as stream:
        assert "Paris" in "".join(stream.text_stream)
    assert client.messages.count_tokens(model="text", messages=question).input_tokens == 5


# ---- forms


@pytest.mark.stand_in_only("audio")
def test_audio(router: Router) -> None:
    sound = bytes(range(256)) * 50
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    text = client.audio.transcriptions.create(model="TEXT", file=("a.wav", sound)).text
    assert text == "12800 bytes of silence"


@pytest.mark.stand_in_only("audio")
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm"),
        ("application/json", b'{"model": "text"}'),
    ],
)
def test_malformed_forms(router: Router, content_type: str, body: bytes) -> None:
    url = f"{router.url}/v1/audio/transcriptions"
    answer = HTTP.post(url, content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


# ---- websockets


def talk(router: Router, query: str, *messages: Any, headers: dict[str, str] | None = None) -> list[Any]:
    """Send messages and return what comes back until the socket closes, its code last."""

    async def run() -> list[Any]:
        got: list[Any] = []
        async with aiohttp.ClientSession() as session:
            url = f"{router.url}/v1/realtime{query}"
            async with session.ws_connect(url, headers=headers) as socket:
                for message in messages:
                    await (
                        socket.send_bytes(message)
                        if isinstance(message, bytes)
                        else socket.send_json(message)
                    )
                async for answer in socket:
                    got.append(
                        answer.data if answer.type is aiohttp.WSMsgType.BINARY else json.loads(answer.data)
                    )
                got.append(socket.close_code)
        return got

    return asyncio.run(run())


@pytest.mark.stand_in_only("realtime websockets")
def test_realtime_by_query(router: Router) -> None:
    got = talk(router, "?model=text", {"type": "a"}, b"\x00\x01", {"type": "close"})
    assert got == [{"type": "echo", "known": True, "got": {"type": "a"}}, b"\x00\x01", 4000]


@pytest.mark.stand_in_only("realtime websockets")
@pytest.mark.parametrize(
    "first",
    [
        {"type": "session.update", "model": "Text"},
        {"type": "session.update", "session": {"model": "TEXT", "x": 1}},
    ],
)
def test_realtime_by_the_session(router: Router, first: dict[str, Any]) -> None:
    got = talk(router, "", first, {"type": "a"}, {"type": "close"})
    assert got[0]["known"] is True
    assert got[1]["got"] == {"type": "a"}
    assert got[-1] == 4000


@pytest.mark.stand_in_only("realtime websockets")
def test_realtime_without_a_model(router: Router) -> None:
    got = talk(router, "", {"type": "a"}, {"type": "a"}, {"type": "a"}, {"type": "a"})
    assert got[0]["error"]["param"] == "model"
    assert got[-1] == 1008
    got = talk(router, "?model=none")
    assert (got[0]["error"]["code"], got[-1]) == ("model_not_found", 1008)


@pytest.mark.stand_in_only("realtime websockets")
def test_realtime_is_a_lease_and_idle_sockets_are_closed(engine: Engine, routers: Routers) -> None:
    router = routers(ROUTER_WEBSOCKET_IDLE="2")
    router.register(engine.registry_entry())
    router.start()
    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk, router, "?model=text", {"type": "a"})
        wait_until(lambda: router.status("text")["in_flight"] == 1)
        assert talking.result()[-1] == 1001
    wait_until(lambda: router.status("text")["in_flight"] == 0)


@pytest.mark.stand_in_only("realtime websockets")
def test_realtime_wakes(router: Router) -> None:
    router.order("services/text/sleep")
    assert talk(router, "?model=text", {"type": "close"}) == [4000]


def handshake(router: Router, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Ask for a websocket as a plain request, so that a refusal can be read."""
    usual = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    return HTTP.get(f"{router.url}{path}?model=text", headers={**usual, **key, **(headers or {})})


@pytest.mark.stand_in_only("realtime websockets")
@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/chat/completions", 405), ("/v1%2Frealtime", 404), ("/", 404), ("/admin/events", 404)],
)
def test_other_websockets(router: Router, path: str, status: int) -> None:
    answer = handshake(router, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.stand_in_only("realtime websockets")
def test_websockets_of_foreign_pages(router: Router) -> None:
    refused = handshake(router, "/v1/realtime", {"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "origin" in refused.json()["error"]["message"]
    assert talk(router, "?model=text", {"type": "close"}, headers={"Origin": ORIGIN}) == [4000]


# ---- pages of browsers


def test_cross_origin(router: Router) -> None:
    ask = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    answer = HTTP.options(f"{router.url}/v1/chat/completions", headers=ask)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert "authorization" in answer.headers["access-control-allow-headers"]
    answer = router.chat("text", headers={"Origin": ORIGIN})
    assert answer.headers.get_list("access-control-allow-origin") == [ORIGIN]
    answer = router.chat("text", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    ask["Origin"] = "https://evil.example"
    assert HTTP.options(f"{router.url}/v1/chat/completions", headers=ask).status_code == 405


# ---- keys


def test_keys(engine: Engine, routers: Routers, tmp_path: Path) -> None:
    path = keys_file(tmp_path, "one", concurrent=1)
    router = routers(ROUTER_API_KEYS_FILE=str(path))
    router.register(engine.registry_entry())
    router.start()
    assert HTTP.get(f"{router.url}/health").status_code == 200
    assert HTTP.get(f"{router.url}/v1/models").status_code == 401
    refused = router.chat("text")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="one", max_retries=0)
    assert client.models.list()
    assert router.chat("text", headers={"x-api-key": "one"}).status_code == 200
    engine.fault(first_token_seconds=3)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: router.chat("text", headers={"x-api-key": "one"}), range(2)))
    engine.fault(first_token_seconds=0.0)
    assert sorted(answer.status_code for answer in answers) == [200, 429]
    limited = next(answer for answer in answers if answer.status_code == 429)
    assert limited.headers["retry-after"] == "1"
    keys_file(tmp_path, "two")
    assert router.order("reload").status_code == 200
    assert router.chat("text", headers={"x-api-key": "one"}).status_code == 401
    assert router.chat("text", headers={"Authorization": "Bearer two"}).status_code == 200
    path.write_text("{")
    assert router.order("reload").status_code == 422
    assert router.chat("text", headers={"Authorization": "Bearer two"}).status_code == 200
    assert {each["key"] for each in router.events("request")} == {None, "key-one", "key-two"}
    refused = handshake(router, "/v1/realtime")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"


def test_tls(engine: Engine, routers: Routers, tmp_path: Path) -> None:
    for name in ("old", "new"):
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}"
        command += " -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.pem")]
        subprocess.run([*command.split(), *files], check=True, capture_output=True)
    certificate, key = tmp_path / "current.pem", tmp_path / "current.key"
    _copy(tmp_path, "old")
    router = routers(ROUTER_TLS_CERTIFICATE=str(certificate), ROUTER_TLS_KEY=str(key))
    router.register(engine.registry_entry())
    router.start()
    url = f"https://127.0.0.1:{router.port}/v1/models"
    for name in ("old", "new"):
        _copy(tmp_path, name)
        assert router.order("reload").status_code == 200
        trust = ssl.create_default_context(cafile=str(tmp_path / f"{name}.pem"))
        assert httpx.get(url, verify=trust).status_code == 200
    certificate.write_text("rubbish")
    assert router.order("reload").status_code == 422
    assert httpx.get(url, verify=trust).status_code == 200


def _copy(folder: Path, name: str) -> None:
    for ending in ("pem", "key"):
        (folder / f"current.{ending}").write_bytes((folder / f"{name}.{ending}").read_bytes())


def test_a_listener_for_balancers(engine: Engine, routers: Routers) -> None:
    port = free_port()
    router = routers(ROUTER_HEALTH_ADDRESS=f"127.0.0.1:{port}")
    router.register(engine.registry_entry())
    router.start()
    url = f"http://127.0.0.1:{port}"
    assert HTTP.get(f"{url}/health").status_code == 200
    for path in ("/v1/models", "/admin/status", "/metrics"):
        assert HTTP.get(url + path).status_code == 404
    assert HTTP.post(f"{url}/health").status_code == 404


# ---- what waits


def test_large_bodies_wait_on_the_disk(engines: Engines, routers: Routers) -> None:
    sleeper = engines()
    router = routers(ROUTER_HELD_MAX_MIB_PER_SERVICE="5")
    router.register(sleeper.registry_entry())
    router.start()
    router.order("services/text/sleep")
    sleeper.fault(wake_seconds=1.5)
    held = router.folder / "state/held"
    with ThreadPoolExecutor(3) as pool:
        large = [pool.submit(router.chat, "text", user="x" * 2_000_000) for _ in range(2)]
        wait_until(lambda: router.status("text")["held"] == 2)
        assert sum(file.stat().st_size for file in held.iterdir()) > 4_000_000
        full = router.chat("text", user="x" * 2_000_000)
        assert full.status_code == 503
        assert "MiB" in full.json()["error"]["message"]
        small = pool.submit(router.chat, "text")
        assert [each.result().status_code for each in (*large, small)] == [200] * 3
    assert list(held.iterdir()) == []


def test_the_queue_is_bounded(engines: Engines, routers: Routers) -> None:
    sleeper = engines()
    router = routers(ROUTER_HELD_MAX="2")
    router.register(sleeper.registry_entry())
    router.start()
    router.order("services/text/sleep")
    sleeper.fault(wake_seconds=3)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: router.chat("text"), range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
    refused = [answer.json()["error"]["message"] for answer in answers if answer.status_code == 503]
    assert all(
        re.search(r" is waking from \w+, and its queue is full \(2 waiting\); ", each) for each in refused
    )


def test_waking_comments_for_those_who_ask(engines: Engines, routers: Routers) -> None:
    sleeper = engines()
    router = routers(ROUTER_HOLD_OFFLOADED="0.6")
    router.register(sleeper.registry_entry())
    router.start()
    router.order("services/text/wake")
    router.order("services/text/sleep")
    sleeper.fault(wake_seconds=0.3)
    opted = {"X-Waking-Comments": "true"}
    answer = router.chat("text", stream=True, headers=opted)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.startswith(": waking\n\ndata: ")
    assert answer.text.rstrip().endswith("[DONE]")
    router.order("services/text/offload")
    sleeper.fault(reload_seconds=2.0)
    answer = router.chat("text", stream=True, headers=opted)
    assert answer.status_code == 200
    assert "event: error" in answer.text
    assert "model_waking" in answer.text
    router.wait_for("text", "awake")
    answer = router.chat("text", stream=True, headers=opted, max_tokens="x")
    assert answer.status_code == 400, "an awake engine's own answer stays as it is"


def test_a_client_that_reads_slowly_gets_everything(router: Router, engine: Engine) -> None:
    """More than the buffers on the way hold, so that the engine has to wait for the client."""
    engine.fault(chunk_seconds=0.0)
    body = {"model": "text", "messages": [], "stream": True, "max_tokens": 60_000}
    with HTTP.stream("POST", f"{router.url}/v1/chat/completions", json=body, timeout=120) as response:
        wait_until(lambda: router.status("text")["in_flight"] == 1)
        time.sleep(1.0)
        assert router.status("text")["in_flight"] == 1, "most of it is still on its way"
        text = response.read()
    assert text.count(b"chat.completion.chunk") == 60_001
    assert text.endswith(b"data: [DONE]\n\n")
    engine.fault(chunk_seconds=0.001)
