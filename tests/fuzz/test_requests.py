"""Proper HTTP with content that may not pass: on every path of the public surface."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from wake_router.surface import FORM_PATHS, JSON_PATHS, REALTIME

from tests.fuzz.effort import examples
from tests.fuzz.wire import assert_refused
from tests.standin.processes import HTTP, Router

OTHER_PATHS = [
    "/v1/models",
    "/v1/models/text",
    "/v1/models/nobody",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    REALTIME.path,
    "/health",
]
PATHS = [*JSON_PATHS, *FORM_PATHS, *OTHER_PATHS]
NOT_FOR_TEXT = [path for path in JSON_PATHS if path.endswith(("embeddings", "score", "rerank", "pooling"))]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "REPORT"]
KNOWN = {"text", "text-alias", "stand-in-1b"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
fields = st.dictionaries(
    st.sampled_from(["messages", "prompt", "input", "stream", "max_tokens", "documents", "Model", "x"]),
    json_values,
    max_size=5,
)
content_types = st.sampled_from(
    [
        "application/json",
        "application/json; charset=utf-16",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        'multipart/form-data; boundary="',
        "multipart/form-data; boundary=" + "x" * 100,
        "multipart/mixed; boundary=x",
        "application/x-www-form-urlencoded",
        "",
    ]
)


def refused(router: Router, path: str, content: bytes, content_type: str = "application/json") -> str:
    """Ask, be refused; the error's code or type."""
    headers = {"Content-Type": content_type}
    answer = HTTP.post(f"{router.url}{path}", content=content, headers=headers)
    assert_refused(answer.status_code, answer.content)
    error = answer.json()["error"]
    return str(error["code"] or error["type"])


def names_ours(body: bytes) -> bool:
    """Whether this is a JSON object that names the model of the sleeping engine: it may pass."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    model = document.get("model") if isinstance(document, dict) else None
    return isinstance(model, str) and model.casefold() in KNOWN


@examples(150)
@given(document=json_values, path=st.sampled_from(JSON_PATHS), content_type=content_types)
def test_any_json_without_our_model(router: Router, document: object, path: str, content_type: str) -> None:
    refused(router, path, json.dumps(document).encode(), content_type)


@examples(150)
@given(
    body=st.binary(max_size=200), path=st.sampled_from([*JSON_PATHS, *FORM_PATHS]), content_type=content_types
)
def test_any_bytes(router: Router, body: bytes, path: str, content_type: str) -> None:
    refused(router, path, body, content_type)


@examples(150)
@given(
    others=fields,
    path=st.sampled_from(JSON_PATHS),
    model=st.none()
    | st.booleans()
    | st.integers()
    | st.lists(st.text(), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.just("text"), max_size=2)
    | st.sampled_from(["", " text", "text\n", "text\x00", "te\u0445t", "../text", "text/", "*", "\ud800"]),
)
def test_any_request_with_a_wrong_model(
    router: Router, others: dict[str, object], path: str, model: object
) -> None:
    refused(router, path, json.dumps({**others, "model": model}).encode())


@examples(100)
@given(others=fields, path=st.sampled_from(NOT_FOR_TEXT), model=st.sampled_from(sorted(KNOWN)))
def test_our_model_for_another_task(router: Router, others: dict[str, object], path: str, model: str) -> None:
    body = json.dumps({**others, "model": model}).encode()
    assert refused(router, path, body) == "model_not_supported"


@examples(250)
@given(
    others=fields,
    path=st.sampled_from(JSON_PATHS),
    place=st.integers(min_value=0),
    change=st.sampled_from(["cut", "drop", "insert", "tail"]),
    rubbish=st.sampled_from(
        [b"}", b"]", b'"', b",", b":", b"\\", b"\x00", b"\xff", b"\x1f", b"NaN", b"//", b"'", b"\xed\xa0\x80"]
    ),
)
def test_our_model_in_broken_json(
    router: Router, others: dict[str, object], path: str, place: int, change: str, rubbish: bytes
) -> None:
    body = json.dumps({**others, "model": "text"}).encode()
    place %= len(body)
    match change:
        case "cut":
            body = body[:place]
        case "drop":
            body = body[:place] + body[place + 1 :]
        case "insert":
            body = body[:place] + rubbish + body[place:]
        case _:
            body += rubbish
    assume(not names_ours(body))
    refused(router, path, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b'"text"',
        b'["model", "text"]',
        b'{"model": "text"',
        b'{"model": "text"}}',
        b'{"model": "text"}{"model": "text"}',
        b'{"model": "text",}',
        b'{"model": text}',
        b"{'model': 'text'}",
        b'{"model": ["text"]}',
        b'{"model": "text", "model": 1}',
        b'{"model": 1, "model": "text"}',
        b'{"model": "text", "temperature": NaN}',
        b'{"model": "text", "temperature": [Infinity, -Infinity]}',
        b'{"model": "text", "x": 01}',
        b'{"model": "text", "x": "\n"}',
        b'{"model": "text", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "text", "x": ' + b"9" * 5000 + b"}",
        b'\xef\xbb\xbf{"model": "text"}',
        '{"model": "text"}'.encode("utf-16"),
        '{"model": "text"}'.encode("utf-32"),
        b'{"model": "text"}\x00',
        b"model=text&messages=",
    ],
)
def test_each_unusable_body(router: Router, body: bytes) -> None:
    for path in JSON_PATHS:
        assert refused(router, path, body) in ("invalid_request_error", "missing_required_parameter")


# ---- forms

HEADS = [
    b'Content-Disposition: form-data; name="model"',
    b'Content-Disposition: form-data; name="model"; filename="model"',
    b'Content-Disposition: attachment; name="model"',
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
    b'Content-Disposition: form-data; name="',
    b"Content-Disposition: form-data",
    b"X: y",
    b"",
]
parts = st.lists(
    st.tuples(
        st.sampled_from(HEADS),
        st.sampled_from([b"nobody", b"", b"\xff", b"--x", b"\r\n", b"te\x00xt", b"text\r\n--x"]),
    ),
    max_size=4,
)


@examples(200)
@given(
    form=parts,
    path=st.sampled_from(FORM_PATHS),
    end=st.sampled_from([b"--x--\r\n", b"--x--", b"--x", b"", b"--y--\r\n", b"--x\r\n"]),
    newline=st.sampled_from([b"\r\n", b"\n"]),
)
def test_forms_without_our_model(
    router: Router, form: list[tuple[bytes, bytes]], path: str, end: bytes, newline: bytes
) -> None:
    body = b"".join(b"--x\r\n" + head + b"\r\n\r\n" + value + b"\r\n" for head, value in form) + end
    refused(router, path, body.replace(b"\r\n", newline), "multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    "body",
    [
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext\r\n',
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext\r\n--x',
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext\r\n--x\r\n',
        b'--x\nContent-Disposition: form-data; name="model"\n\ntext\n--x--\n',
        b'--x\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\ntext\r\n--x--\r\n',
        b'--x\r\nContent-Disposition: form-data; name="mode"\r\n\r\ntext\r\n--x--\r\n',
        b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext\r\n--xx--\r\n',
        b'Content-Disposition: form-data; name="model"\r\n\r\ntext\r\n--x--\r\n',
    ],
)
@pytest.mark.parametrize("path", FORM_PATHS)
def test_each_malformed_form(router: Router, path: str, body: bytes) -> None:
    refused(router, path, body, "multipart/form-data; boundary=x")


@pytest.mark.parametrize("path", FORM_PATHS)
def test_an_endless_form_is_ended(router: Router, path: str) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"y" * 60_000 + b"\r\n"
    answer = HTTP.post(
        f"{router.url}{path}",
        content=(part for _ in range(100)),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 413
    assert_refused(answer.status_code, answer.content)


@pytest.mark.parametrize("path", JSON_PATHS)
def test_too_large(router: Router, path: str) -> None:
    assert (
        refused(router, path, b'{"model": "text", "x": "' + b"y" * 1_200_000 + b'"}') == "request_too_large"
    )


# ---- methods, paths, queries


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
def test_every_method_on_every_path(router: Router, method: str, path: str) -> None:
    """Without a body, so that POST is refused as well; only looking is allowed."""
    answer = HTTP.request(method, f"{router.url}{path}")
    if method in ("GET", "HEAD") and path in ("/v1/models", "/v1/models/text", "/health"):
        assert answer.status_code == 200
    elif method == "HEAD":
        assert 400 <= answer.status_code < 500
    else:
        assert_refused(answer.status_code, answer.content)


@examples(150)
@given(
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#"), max_size=40),
    prefix=st.sampled_from(["/", "/v1/", "/v1/chat/", "/v1/responses/", "/v1/models/", "/admin/", "/%"]),
    query=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20),
    method=st.sampled_from(["GET", "POST", "DELETE"]),
)
def test_any_other_path(router: Router, path: str, prefix: str, query: str, method: str) -> None:
    assume(prefix + path not in PATHS and not any(name in path.casefold() for name in KNOWN))
    answer = HTTP.request(method, as_it_is(router, prefix + path, query))
    assert_refused(answer.status_code, answer.content)


def as_it_is(router: Router, path: str, query: str) -> httpx.URL:
    """A URL whose path and query are sent as they are."""
    return httpx.URL(router.url).copy_with(raw_path=f"{path}?{query}".encode())


# ---- websockets

first_messages = st.lists(
    st.one_of(
        json_values.map(json.dumps),
        st.text(max_size=50),
        st.binary(max_size=50),
        st.sampled_from(
            ["[" * 100_000, '{"model": "nobody"}', '{"session": {"model": 1}}', '{"model": NaN}']
        ),
    ),
    min_size=4,
    max_size=4,
)


@examples(60)
@given(messages=first_messages, query=st.sampled_from(["", "?model=", "?model=nobody", "?model=%ff", "?x"]))
def test_any_first_messages_on_a_websocket(router: Router, messages: list[str | bytes], query: str) -> None:
    """None of four messages names our model: the socket is closed, with a reason."""
    got, code = asyncio.run(_talk(f"{router.url}{REALTIME.path}{query}", messages))
    assert json.loads(got[0])["error"]["message"]
    assert code == 1008


async def _talk(url: str, messages: list[str | bytes]) -> tuple[list[str], int | None]:
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        for message in messages:
            if socket.closed:
                break
            if isinstance(message, str):
                await socket.send_str(message)
            else:
                await socket.send_bytes(message)
        got = [str(answer.data) async for answer in socket]
        return got, socket.close_code
