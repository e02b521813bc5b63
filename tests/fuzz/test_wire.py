"""What must never pass, byte by byte: each request here names a model that there is, asks for what its engine
has, and is refused for one flaw alone. A router that overlooked the flaw would wake the engine.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.effort import SEED, examples
from tests.fuzz.wire import answers, assert_all_refused, post, talk
from tests.standin.processes import HTTP, Engine, Router

OURS = json.dumps({"model": "text", "messages": [{"role": "user", "content": "?"}]}).encode()
NOBODYS = b'{"model": "nobody", "messages": []}'
LENGTH = b"Content-Length: %d" % len(OURS)
CHUNKED = b"Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n" % len(OURS) + OURS + b"\r\n0\r\n\r\n"

TARGETS = [
    b"http://x/v1/chat/completions",
    b"https://127.0.0.1:443/v1/chat/completions",
    b"x:80",
    b"*",
    b"v1/chat/completions",
    b"//v1/chat/completions",
    b"//x/v1/chat/completions",
    b"/v1//chat/completions",
    b"/v1/chat/completions/",
    b"/v1/chat/completions//",
    b"/v1/chat/completions#x",
    b"/v1/chat/completions;x=1",
    b"/v1/./chat/completions",
    b"/v1/x/../chat/completions",
    b"/../v1/chat/completions",
    b"/v1/chat/%63ompletions/..",
    b"/v1/chat%2fcompletions",
    b"/v1/chat%2Fcompletions",
    b"/v1%2fchat%2fcompletions",
    b"/v1/chat%252fcompletions",
    b"/%2576%31/chat/completions",
    b"/v1/%2e/chat/completions",
    b"/v1/x/%2e%2e/chat/completions",
    b"/v1/x/.%2E/chat/completions",
    b"/v1/chat%5ccompletions",
    b"/v1\\chat\\completions",
    b"\\v1\\chat\\completions",
    b"/v1/chat/completions%00",
    b"/v1/chat/completions%20",
    b"/v1/chat/completions%0a",
    b"/v1/chat/completions%0d%0aHost:%20y",
    b"/v1/chat/completions%3fx",
    b"/v1/chat%c0%afcompletions",
    b"/v1/chat/completions\xff",
    b"/V1/Chat/Completions",
    b"/v1/chat/completions" + b"/" * 5000,
    b"/" + b"a" * 20_000,
    b"/openai/v1/chat/completions",
    b"/sleep?level=2",
    b"/wake_up",
    b"/collective_rpc",
    b"/metrics",
    b"/docs",
    b"/openapi.json",
    b"/v1/load_lora_adapter",
    b"/admin/services/text/wake",
    b"/server_info",
    b"/reset_prefix_cache",
]

FRAMINGS: list[tuple[list[bytes], bytes]] = [
    ([LENGTH, b"Content-Length: 5"], OURS),
    ([LENGTH, LENGTH], OURS),
    ([b"Content-Length: %d, %d" % (len(OURS), len(OURS))], OURS),
    ([LENGTH, CHUNKED], IN_CHUNKS),
    ([CHUNKED, LENGTH], OURS),
    ([b"Content-Length: -1"], OURS),
    ([b"Content-Length: +%d" % len(OURS)], OURS),
    ([b"Content-Length: 0x%x" % len(OURS)], OURS),
    ([b"Content-Length: 1e2"], OURS),
    ([b"Content-Length: %d_0" % len(OURS)], OURS),
    ([b"Content-Length: 99999999999999999999"], OURS),
    ([b"Content-Length: 9999999999"], OURS),
    ([b"Content-Length: "], OURS),
    ([b"Content-Length : %d" % len(OURS)], OURS),
    ([b"Content-Length\t: %d" % len(OURS)], OURS),
    ([CHUNKED, CHUNKED], IN_CHUNKS),
    ([b"Transfer-Encoding: chunked, chunked"], IN_CHUNKS),
    ([b"Transfer-Encoding: gzip, chunked"], IN_CHUNKS),
    ([b"Transfer-Encoding: chunked, gzip"], IN_CHUNKS),
    ([b"Transfer-Encoding: identity"], OURS),
    ([b"Transfer-Encoding: xchunked"], IN_CHUNKS),
    ([b"Transfer-Encoding: \x0bchunked"], IN_CHUNKS),
    ([b"Transfer-Encoding:\n chunked"], IN_CHUNKS),
    ([b"Transfer-Encoding : chunked"], IN_CHUNKS),
    ([b"Transfer-Encoding: chunked;x=1"], IN_CHUNKS),
    ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], IN_CHUNKS),
    ([CHUNKED], IN_CHUNKS[:-5]),
    ([CHUNKED], IN_CHUNKS[:-12]),
    ([CHUNKED], b"-5\r\n" + IN_CHUNKS),
    ([CHUNKED], b"0x" + IN_CHUNKS),
    ([CHUNKED], b"+" + IN_CHUNKS),
    ([CHUNKED], b"fffffffffffffffff\r\n" + OURS),
    ([CHUNKED], IN_CHUNKS.replace(b"\r\n", b"\n")),
    ([CHUNKED], b"1\r\n" + OURS + b"\r\n0\r\n\r\n"),
    ([CHUNKED], b"5;" + b"x" * 200_000),
    ([CHUNKED], b"%x\r\n" % len(OURS) + OURS + b"\r\n0\r\nX: " + b"y" * 200_000),
    ([b"Content-Length: %d" % (len(OURS) + 1)], OURS),
]

LINES = [
    b"No colon",
    b": no name",
    b"Two words: x",
    b"X\x00: y",
    b"X: y\x00z",
    b"X: y\rz",
    b"X: y\nContent-Type: text/plain\n",
    b"X: y\r\n folded",
    b" X: begins with a space",
    b"X\xff: y",
    b"X: y\x7f",
    b"X: " + b"y" * 100_000,
    b"\r\n".join(b"X-%d: y" % number for number in range(10_000)),
    b"Y" * 100_000 + b": y",
    b"Host: another",
]

harmless = st.lists(
    st.sampled_from(
        [
            b"X-A: b",
            b"Accept: */*",
            b"Prefer: wait=1",
            b"User-Agent: x",
            b"Cookie: a=b",
            b"Expect: 100-continue",
        ]
    ),
    max_size=3,
)
cuts = st.lists(st.integers(min_value=1, max_value=400), max_size=3)


def in_pieces(request: bytes, at: list[int]) -> list[bytes]:
    """The request cut into pieces."""
    places = [0, *sorted({place for place in at if place < len(request)}), len(request)]
    return [request[start:end] for start, end in pairwise(places)]


@examples(120)
@given(target=st.sampled_from(TARGETS), around=harmless, at=cuts)
def test_targets(router: Router, target: bytes, around: list[bytes], at: list[int]) -> None:
    request = post(OURS, target, [b"Host: x", *around, LENGTH, b"Connection: close"])
    assert assert_all_refused(talk(router, *in_pieces(request, at)))


@pytest.mark.parametrize("target", TARGETS)
def test_each_target(router: Router, target: bytes) -> None:
    request = post(OURS, target, [b"Host: x", LENGTH, b"Connection: close"])
    assert assert_all_refused(talk(router, request))


@examples(150)
@given(framing=st.sampled_from(FRAMINGS), around=harmless, at=cuts)
def test_framings(
    router: Router, framing: tuple[list[bytes], bytes], around: list[bytes], at: list[int]
) -> None:
    headers, body = framing
    request = post(body, headers=[b"Host: x", *around, *headers])
    assert_all_refused(talk(router, *in_pieces(request, at)))


@pytest.mark.parametrize("framing", FRAMINGS)
def test_nothing_hides_behind_a_framing(router: Router, framing: tuple[list[bytes], bytes]) -> None:
    """A second request to our model, for a parser that took the first one to be shorter."""
    headers, body = framing
    request = post(body, headers=[b"Host: x", *headers])
    assert_all_refused(talk(router, request + post(OURS)))


@examples(100)
@given(line=st.sampled_from(LINES), before=harmless, after=harmless, at=cuts)
def test_lines(router: Router, line: bytes, before: list[bytes], after: list[bytes], at: list[int]) -> None:
    request = post(OURS, headers=[b"Host: x", LENGTH, *before, line, *after])
    assert_all_refused(talk(router, *in_pieces(request, at)))


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\n" + CHUNKED + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.2\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/2.0\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/9.9\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions http/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST\t/v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1 \r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\nHost: x\n" + LENGTH + b"\n\n",
        b"POST /v1/chat/completions HTTP/1.1\rHost: x\r" + LENGTH + b"\r\r",
        b"post /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-x\r\n",
        b"\x00" * 100,
        b"GET /v1/models\r\n",
    ],
)
def test_what_is_not_our_http(router: Router, head: bytes) -> None:
    body = IN_CHUNKS if CHUNKED in head else OURS
    assert_all_refused(talk(router, head + body))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_methods(router: Router, method: str) -> None:
    request = post(OURS, headers=[b"Host: x", LENGTH, b"Connection: close"], method=method.encode())
    assert assert_all_refused(talk(router, request))


HANDSHAKE = [
    b"Host: x",
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Sec-WebSocket-Version: 13",
]


@pytest.mark.parametrize(
    ("target", "headers", "method"),
    [
        *((b"/v1/realtime?model=text", HANDSHAKE[:at] + HANDSHAKE[at + 1 :], b"GET") for at in range(1, 5)),
        (b"/v1/realtime?model=text", [*HANDSHAKE[:3], b"Sec-WebSocket-Key: x", HANDSHAKE[4]], b"GET"),
        (b"/v1/realtime?model=text", [*HANDSHAKE[:4], b"Sec-WebSocket-Version: 8"], b"GET"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, b"Sec-WebSocket-Version: 13"], b"GET"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, b"Sec-WebSocket-Extensions: ;;"], b"GET"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, *(b"X-%d: y" % n for n in range(300))], b"GET"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, b"X: " + b"y" * 10_000], b"GET"),
        (b"/v1/realtime?model=text", HANDSHAKE, b"POST"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, LENGTH], b"POST"),
        (b"/v1/realtime?model=text", [*HANDSHAKE, LENGTH], b"GET"),
        (b"/v1/realtime/?model=text", HANDSHAKE, b"GET"),
        (b"/v1%2frealtime?model=text", HANDSHAKE, b"GET"),
        (b"/v1/%72ealtime?model=text", HANDSHAKE, b"GET"),
        (b"http://x/v1/realtime?model=text", HANDSHAKE, b"GET"),
        (b"/v1/chat/completions", HANDSHAKE, b"GET"),
        (b"/v1/chat/completions", [*HANDSHAKE, LENGTH], b"PUT"),
        (b"/admin/events", HANDSHAKE, b"GET"),
        (b"x:80", HANDSHAKE, b"CONNECT"),
    ],
)
def test_websockets_that_are_none(router: Router, target: bytes, headers: list[bytes], method: bytes) -> None:
    body = OURS if LENGTH in headers else b""
    assert assert_all_refused(talk(router, post(body, target, headers, method=method)))


@pytest.mark.parametrize("headers", [[b"Upgrade: h2c", b"Connection: Upgrade"], [b"Upgrade: TLS/1.0"]])
def test_an_upgrade_to_something_else_is_ignored(router: Router, headers: list[bytes]) -> None:
    raw = talk(router, post(b"", b"/health", [b"Host: x", *headers], method=b"GET") + post(NOBODYS))
    assert [status for status, _ in answers(raw)][:1] == [200]


def test_an_endless_head_is_ended(router: Router) -> None:
    """The router says so and closes, long before all is sent."""
    raw = talk(router, b"GET /health HTTP/1.1\r\nHost: x\r\n", *(b"X: " + b"y" * 10_000 for _ in range(50)))
    assert set(assert_all_refused(raw)) <= {431}


def test_random_bytes(router: Router) -> None:
    chance = random.Random(SEED)
    seeds = [
        post(NOBODYS),
        post(b"23\r\n" + NOBODYS + b"\r\n0\r\n\r\n", headers=[b"Host: x", CHUNKED]),
        post(b"", b"/v1/realtime", HANDSHAKE, method=b"GET"),
        post(b"", b"/v1/models/nobody", [b"Host: x"], method=b"GET"),
        post(b"5\r\nhello\r\n0\r\n\r\n", b"/v1/responses/resp_1/cancel", [b"Host: x", CHUNKED]),
    ]
    for _ in range(400):
        request = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 12)):
            place = chance.randrange(len(request))
            match chance.randrange(3):
                case 0:
                    request[place] = chance.randrange(256)
                case 1:
                    del request[place]
                case _:
                    request[place:place] = chance.choice([b"\r", b"\n", b"\r\n", b" ", b"\x00", b"%", b":"])
        raw = talk(router, bytes(request), quiet=0.02)
        assert not raw.startswith(b"HTTP/1.1 5"), (SEED, bytes(request), raw)
    assert HTTP.get(f"{router.url}/health").status_code == 200


def test_without_a_flaw_they_get_through(tmp_path: Path) -> None:
    """The others here are refused for their flaw; a router that refused everything would pass those tests."""
    engine, router = Engine().start(), Router(tmp_path / "router")
    try:
        router.register(engine.registry_entry())
        router.start()
        usual = [b"Host: x", b"Content-Type: application/json", b"Connection: close"]
        for request in (post(OURS, headers=[*usual, LENGTH]), post(IN_CHUNKS, headers=[*usual, CHUNKED])):
            ((status, body),) = answers(talk(router, *in_pieces(request, [1, 30, 90]), quiet=20.0))
            assert status == 200, body
        assert len(engine.calls("/v1/chat/completions")) == 2
    finally:
        router.stop()
        engine.kill()
