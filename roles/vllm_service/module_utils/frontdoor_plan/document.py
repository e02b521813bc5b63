"""Writes plain data as YAML made for people to read, always in the same bytes.

Only what Compose files need: mappings, lists, texts, whole numbers and booleans. A text that YAML could take
for something else is quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Scalar = str | int | bool
Data = Scalar | Sequence["Data"] | Mapping[str, "Data"]

_PLAIN = re.compile(r"(?:--?)?[A-Za-z/.][A-Za-z0-9_/.@+:,=-]*(?<!:)")
_WORDS_WITH_A_MEANING = frozenset(
    {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"}
)


def to_yaml(document: Mapping[str, Data], header: Sequence[str] = ()) -> str:
    """The document in block style, below `header` as comment lines."""
    lines = [f"# {line}".rstrip() for line in header]
    return "\n".join([*lines, "---", *_block(document, 0), ""])


def _block(data: Mapping[str, Data] | Sequence[Data], depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _entry(f"{indent}{_scalar(key)}:", value, depth + 1)
    else:
        for item in data:
            yield from _entry(f"{indent}-", item, depth + 1)


def _entry(start: str, value: Data, depth: int) -> Iterator[str]:
    if isinstance(value, str | int):
        yield f"{start} {_scalar(value)}"
    elif not value:
        yield f"{start} {'{}' if isinstance(value, Mapping) else '[]'}"
    elif start.endswith("-"):
        nested = list(_block(value, depth))
        yield f"{start} {nested[0].lstrip()}"
        yield from nested[1:]
    else:
        yield start
        yield from _block(value, depth)


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_A_MEANING and not _looks_numeric(value):
        return value
    return _quoted(value)


def _quoted(text: str) -> str:
    """A double-quoted text. JSON writes characters beyond U+FFFF as pairs, which YAML does not read."""
    return "".join(
        character if character.isprintable() else _escaped(ord(character))
        for character in json.dumps(text, ensure_ascii=False)
    )


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _looks_numeric(text: str) -> bool:
    return re.fullmatch(r"[.0-9][.0-9eE+_-]*", text) is not None
