"""Collects what can be understood of what people wrote, and refusals for what can't."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import spelling, values
from .model import Refusal
from .values import WrongValueError, shown

T = TypeVar("T")


@dataclass
class Parsing:
    """Collects refusals, so that one mistake does not hide the next."""

    refusals: list[Refusal] = field(default_factory=list)

    def refuse(self, where: str, what: str, why: str, remedy: str) -> None:
        self.refusals.append(Refusal(where=where, what=what, why=why, remedy=remedy))

    def take(self, where: str, value: Any, read: values.Reader[T], secret: bool = False) -> T | None:
        """The value as `read` understands it, or None with a refusal."""
        try:
            return read(value)
        except WrongValueError as wrong:
            what = f"{where} can't be used" + ("." if secret else f": {shown(value)}.")
            self.refuse(where, what, wrong.why, wrong.remedy)
            return None

    def optional(self, raw: Mapping[str, Any], name: str, read: values.Reader[T], default: T) -> T:
        """The variable `name`, or the default where it is absent or wrong."""
        if raw.get(name) is None:
            return default
        found = self.take(name, raw[name], read)
        return default if found is None else found


def below(where: str, raw_name: Any) -> str:
    """The place of an entry, as a person finds it."""
    return f"{where}.{raw_name if isinstance(raw_name, str) else shown(raw_name)}"


def read_keys(
    parsing: Parsing, where: str, wish: Mapping[Any, Any], readers: Mapping[str, values.Reader[Any]]
) -> dict[str, Any]:
    """What could be read of a mapping's settings; an empty line in YAML means the default."""
    found: dict[str, Any] = {}
    for key, read in readers.items():
        if wish.get(key) is None:
            continue
        value = parsing.take(f"{where}.{key}", wish[key], read)
        if value is not None:
            found[key] = value
    return found


def refuse_unknown_keys(
    parsing: Parsing, where: str, wish: Mapping[Any, Any], known: Collection[str]
) -> None:
    """Refuse every setting that has none of the known names."""
    for key in sorted(key if isinstance(key, str) else shown(key) for key in wish):
        if key not in known:
            parsing.refuse(
                f"{where}.{key}",
                f"{where} has no setting {shown(key)}.",
                f"Known are: {', '.join(known)}.",
                spelling.remedy(key, known),
            )
