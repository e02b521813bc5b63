"""Where the model's name is found, and what is refused."""

from __future__ import annotations

import pytest
from wake_router.model_name import UnusableBodyError, find_model


def test_nested_models_are_left_alone() -> None:
    body = b'{ "messages": [{"model": "inner"}], "model" : "outer" , "x": "model" }'
    assert (
        find_model(body).with_model("new")
        == b'{ "messages": [{"model": "inner"}], "model" : "new" , "x": "model" }'
    )


def test_a_key_that_comes_twice_counts_as_parsers_count_it() -> None:
    named = find_model(b'{"model": "one", "model": "two"}')
    assert named.model == "two"
    assert named.with_model("three") == b'{"model": "three", "model": "three"}'


def test_an_escaped_key_is_the_same_key() -> None:
    assert find_model(rb'{"mod\u0065l": "a\u0062"}').model == "ab"


def test_characters_of_several_bytes_before_the_name() -> None:
    body = '{"a": "größe 🙂", "model": "ü", "b": "ß"}'.encode()
    assert find_model(body).with_model("x") == '{"a": "größe 🙂", "model": "x", "b": "ß"}'.encode()


@pytest.mark.parametrize(
    ("text", "stream"), [("true", True), ("false", False), ('"true"', False), ("null", False)]
)
def test_stream(text: str, stream: bool) -> None:
    assert find_model(f'{{"model": "a", "stream": {text}}}'.encode()).stream is stream


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"model"',
        b"{}",
        b'{"model": 1}',
        b'{"model": null}',
        b'{"model": ""}',
        b'{"model": ["a"]}',
        b'{"model": "a"',
        b'{"model": "a"}}',
        b'{"model": "a",}',
        b'{"model" "a"}',
        b'{"model": "a" "b": 1}',
        b"{model: 1}",
        b'{"model": "a\nb"}',
        b'\xff{"model": "a"}',
        '{"model": "a"}'.encode("utf-16"),
        b'{"model": "a", "x": ' + b"[" * 100_000 + b"}",
        b'{"model": "a", "x": ' + b"9" * 5000 + b"}",
        b'{"model": "one", "model": 2}',
        b'{"model": 2, "model": "one"}',
    ],
)
def test_refused(body: bytes) -> None:
    with pytest.raises(UnusableBodyError, match=r"\."):
        find_model(body)
