"""Keys, limits and origins."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from wake_router.access import Gate, Key, KeysError, Origins, read_keys
from wake_router.openai_errors import AnswerError


def key(secret: str, **fields: int) -> Key:
    return Key(name=secret.upper(), sha256=hashlib.sha256(secret.encode()).hexdigest(), **fields)


def test_without_keys_everybody_enters() -> None:
    gate = Gate(None)
    assert gate.is_open
    assert gate.identify(None, None) is None


def test_keys() -> None:
    gate = Gate([key("one"), key("two")])
    for given in (("Bearer two", None), ("bearer  two", None), (None, "two"), ("Bearer one", "two")):
        found = gate.identify(*given)
        assert found is not None
        assert found.name == "TWO"
    for wrong in (
        (None, None),
        ("Bearer three", None),
        ("Basic two", None),
        ("two", None),
        (None, ""),
        ("Bearer", None),
    ):
        with pytest.raises(AnswerError) as error:
            gate.identify(*wrong)
        assert (error.value.status, error.value.code) == (401, "invalid_api_key")


def test_concurrent() -> None:
    one = key("one", concurrent=1)
    gate = Gate([one])
    gate.enter(one, 0.0)
    with pytest.raises(AnswerError) as error:
        gate.enter(one, 1.0)
    assert error.value.status == 429
    gate.leave(one)
    gate.enter(one, 2.0)


def test_per_minute() -> None:
    one = key("one", per_minute=2)
    gate = Gate([one])
    for now in (0.0, 10.0):
        gate.enter(one, now)
        gate.leave(one)
    with pytest.raises(AnswerError) as error:
        gate.enter(one, 20.0)
    assert dict(error.value.headers)[b"retry-after"] == b"40"
    gate.enter(one, 60.0)
    with pytest.raises(AnswerError):
        gate.enter(one, 61.0)


def test_other_keys_keep_the_count() -> None:
    one = key("one", concurrent=1)
    gate = Gate([one])
    gate.enter(one, 0.0)
    gate.replace_keys([one, key("two")])
    with pytest.raises(AnswerError):
        gate.enter(one, 0.0)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "JSON"),
        ("{}", "schema_version"),
        ('{"schema_version": 1, "keys": [{"name": "a", "sha256": "secret"}]}', "keys.0.sha256"),
        ('{"schema_version": 1, "keys": [{"name": "a b", "sha256": "x"}]}', "keys.0.name"),
    ],
)
def test_a_wrong_file_is_told_without_its_content(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(KeysError, match=what) as error:
        read_keys(path)
    assert "secret" not in str(error.value)


def test_a_right_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"schema_version": 1, "keys": [key("one", per_minute=5).model_dump()]}))
    assert read_keys(path) == (key("one", per_minute=5),)
    with pytest.raises(KeysError, match="can't be read"):
        read_keys(tmp_path / "none")


def test_origins() -> None:
    none, some, every = (
        Origins(frozenset()),
        Origins(frozenset({"https://a.example"})),
        Origins(frozenset({"*"})),
    )
    assert none.headers("https://a.example") == []
    assert none.refuses("https://a.example")
    assert not none.refuses(None)
    assert dict(some.headers("https://A.example"))[b"access-control-allow-origin"] == b"https://A.example"
    assert dict(some.headers("https://b.example")).keys() == {b"vary"}
    assert some.preflight("https://b.example") == []
    assert b"access-control-allow-methods" in dict(every.preflight("https://b.example"))
