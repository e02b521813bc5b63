"""Finds the model's name in a JSON body, and exchanges only the bytes of that string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

_WHITESPACE: Final = re.compile(r"[ \t\n\r]*")


class UnusableBodyError(ValueError):
    """The body isn't JSON, or names no model; `param` is the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_scan_once: Final = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]
"""Python's parser without the NaN and Infinity that it takes beyond JSON."""


@dataclass(frozen=True, slots=True)
class NamedBody:
    """A body, where its model's name is, how a name is written there, and what else the router needs."""

    body: bytes
    model: str
    spans: tuple[tuple[int, int], ...]
    stream: bool
    encode: Callable[[str], bytes]

    def with_model(self, name: str) -> bytes:
        """The body with another model's name; every byte outside the model's string stays as it came."""
        if name == self.model:
            return self.body
        encoded = self.encode(name)
        parts = []
        position = 0
        for start, end in self.spans:
            parts += [self.body[position:start], encoded]
            position = end
        return b"".join([*parts, self.body[position:]])


def find_model(body: bytes) -> NamedBody:
    """Read a JSON object with a top-level string `model`; raises UnusableBodyError.

    The whole body is parsed, so that what is broken never reaches an engine. When a key comes twice, JSON
    parsers take the last; all places are exchanged, so it doesn't matter which one the engine takes.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise UnusableBodyError("The body is not valid JSON: it is not UTF-8.") from None
    try:
        found = _scan_object(text)
    except RecursionError:
        raise UnusableBodyError("The body is not usable JSON: it is nested too deeply.") from None
    except (ValueError, StopIteration) as error:
        raise UnusableBodyError(f"The body is not valid JSON: {error or 'it ends too early'}.") from None
    if not found.model_spans:
        raise UnusableBodyError("The body names no model: the field 'model' is missing.", "model")
    if not found.models_are_strings or not isinstance(found.model, str) or not found.model:
        raise UnusableBodyError("The field 'model' must be a non-empty string.", "model")
    spans = (
        found.model_spans if len(text) == len(body) else [_in_bytes(text, span) for span in found.model_spans]
    )
    return NamedBody(body, found.model, tuple(spans), found.stream, _as_json)


def _as_json(name: str) -> bytes:
    return json.dumps(name).encode()


@dataclass(slots=True)
class _Scan:
    model: Any
    model_spans: list[tuple[int, int]]
    models_are_strings: bool
    stream: bool


def _scan_object(text: str) -> _Scan:
    """Walk the top level of a JSON object; the values are parsed (and so checked) by the C scanner."""
    scan = _Scan(None, [], True, False)
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        json.loads(text)
        raise UnusableBodyError("The body must be a JSON object.")
    position = _skip(text, position + 1)
    if text[position : position + 1] == "}":
        position += 1
    else:
        position = _scan_members(text, position, scan)
    position = _skip(text, position)
    if position != len(text):
        raise json.JSONDecodeError("Extra data", text, position)
    return scan


def _scan_members(text: str, position: int, scan: _Scan) -> int:
    while True:
        if text[position : position + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, position)
        key, position = scanstring(text, position + 1, True)
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
        start = _skip(text, position + 1)
        value, end = _scan_once(text, start)
        _take(scan, key, value, (start, end))
        position = _skip(text, end)
        delimiter = text[position : position + 1]
        if delimiter == "}":
            return position + 1
        if delimiter != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        position = _skip(text, position + 1)


def _take(scan: _Scan, key: str, value: Any, span: tuple[int, int]) -> None:
    if key == "model":
        scan.model = value
        scan.model_spans.append(span)
        scan.models_are_strings = scan.models_are_strings and isinstance(value, str)
    elif key == "stream":
        scan.stream = value is True


def _skip(text: str, position: int) -> int:
    match = _WHITESPACE.match(text, position)
    assert match is not None
    return match.end()


def _in_bytes(text: str, span: tuple[int, int]) -> tuple[int, int]:
    start = len(text[: span[0]].encode())
    return start, start + len(text[span[0] : span[1]].encode())
