"""Reads one raw Ansible value each: what is unambiguous is coerced, everything else is refused.

Ansible hands over what YAML and the command line made of a value: `0.9`, `"0.9"`, `true`, `"true"`. Each
reader returns the proper type or raises WrongValueError with a reason and a remedy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

T = TypeVar("T")
Reader = Callable[[Any], T]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_DECIMAL_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
_NUMBER_OF_A_KIND = re.compile(r"([0-9]{1,15}(?:[.,][0-9]{1,15})?)\s*(%|[GgTt]i?[Bb]?)?")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SHOWN_CHARACTERS = 60
_SURELY_PERCENT = 10  # a bare number below it may as well be a share that was taken for more than all


class WrongValueError(ValueError):
    """A value that can't be used: why, and what to write instead."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


def shown(value: Any) -> str:
    """The value as a person wrote it, short enough for a sentence."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def kind_of(value: Any) -> str:
    """The type of a value in the words of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float | Decimal):
        return "a number"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a value of the type {type(value).__name__}"


def whole_number(minimum: int, maximum: int, unit: str = "") -> Reader[int]:
    """A whole number from `minimum` to `maximum`, also when written as a text."""
    span = f"a whole number from {minimum} to {maximum}{' ' + unit if unit else ''}"

    def read(value: Any) -> int:
        if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
            value = int(value.strip())
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValueError(f"It is {kind_of(value)}; needed is {span}.", f"Write {span}.")
        if not minimum <= value <= maximum:
            raise WrongValueError(f"It is outside of {minimum} to {maximum}.", f"Write {span}.")
        return value

    return read


def decimal_number(above: str, maximum: str, unit: str, example: str = "0.5") -> Reader[Decimal]:
    """A decimal number above `above` and up to `maximum`, exact as it was written.

    `example` is shown where nothing nearer to what was written would do.
    """
    span = f"{unit} above {above} and up to {maximum}"

    def fits(number: Decimal) -> bool:
        return Decimal(above) < number <= Decimal(maximum)

    def read(value: Any) -> Decimal:
        number = decimal_or_none(value)
        if number is not None and fits(number):
            return number
        meant = _meant(value, in_hundredths=Decimal(maximum) == 1)
        shown_number = format(meant, "f") if meant is not None and fits(meant) else example
        why = (
            f"It is {kind_of(value)}; needed is {span}."
            if number is None
            else f"It is not above {above} and at most {maximum}."
        )
        raise WrongValueError(why, f"Write {span}, such as {shown_number}.")

    return read


def _meant(value: Any, in_hundredths: bool) -> Decimal | None:
    """The number that a person may have meant: 0.5 by 0,5 and, where a share is wanted, 0.88 by 88% or 88."""
    text = shown(value) if decimal_or_none(value) is not None else value
    match = _NUMBER_OF_A_KIND.fullmatch(text.strip(" '\"")) if isinstance(text, str) else None
    if match is None or (match[2] and in_hundredths != (match[2] == "%")):
        return None
    number = Decimal(match[1].replace(",", "."))
    hundredths = in_hundredths and (match[2] == "%" or number >= _SURELY_PERCENT)
    return (number / 100).normalize() if hundredths else number


def decimal_or_none(value: Any) -> Decimal | None:
    """A decimal number, also when written as a text; None for anything else."""
    if isinstance(value, str) and _DECIMAL_NUMBER.fullmatch(value.strip()):
        return Decimal(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = Decimal(str(value))
    except (InvalidOperation, ValueError):  # integers of more than 4300 digits
        return None
    return number if number.is_finite() else None


def boolean(value: Any) -> bool:
    """A boolean, also when written as a text; 0 and 1 could be numbers and are refused."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise WrongValueError(f"It is {kind_of(value)}; needed is true or false.", "Write true or false.")


def line(value: Any) -> str:
    """A text of one line that is not empty. A number is taken as it is written."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = shown(value)
    if not isinstance(value, str):
        raise WrongValueError(f"It is {kind_of(value)}; needed is a text.", "Write a text, in quotes.")
    if not value.strip():
        raise WrongValueError("It is empty.", "Write a text, or leave the line out.")
    if not value.isprintable():
        raise WrongValueError(
            "It holds a line break or another control character.", "Write the text on one line."
        )
    return value.strip()


def word(value: Any) -> str:
    """A text of one line without spaces."""
    text = line(value)
    if any(character.isspace() for character in text):
        raise WrongValueError("It holds a space.", "Write it without spaces.")
    return text


def matching(pattern: re.Pattern[str], rule: str) -> Reader[str]:
    """A text that matches the whole pattern; `rule` says in words what that is."""

    def read(value: Any) -> str:
        text = line(value)
        if not pattern.fullmatch(text):
            raise WrongValueError(f"It does not fit: {rule}.", f"Write a text that fits: {rule}.")
        return text

    return read


def one_of(*choices: str) -> Reader[str]:
    """One of a few words."""
    listed = ", ".join(choices)

    def read(value: Any) -> str:
        if isinstance(value, str) and value.strip() in choices:
            return value.strip()
        raise WrongValueError(f"It is none of: {listed}.", f"Write one of: {listed}.")

    return read


def list_of(read_item: Reader[T], *, single: bool = False) -> Reader[tuple[T, ...]]:
    """A list; with `single` also one text in place of a list of one."""

    def read(value: Any) -> tuple[T, ...]:
        if single and isinstance(value, str | int) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list | tuple):
            raise WrongValueError(f"It is {kind_of(value)}; needed is a list.", "Write a list: [one, two].")
        return tuple(read_item(item) for item in value)

    return read


def mapping(value: Any) -> Mapping[Any, Any]:
    """A mapping, whatever is in it."""
    if not isinstance(value, Mapping):
        raise WrongValueError(f"It is {kind_of(value)}; needed is a mapping.", "Write NAME: value lines.")
    return value


def environment_name(name: Any) -> str:
    """The name of an environment variable."""
    if not isinstance(name, str) or not _ENVIRONMENT_NAME.fullmatch(name):
        raise WrongValueError(
            f"{shown(name)} is no name of an environment variable.",
            "Use letters, digits and underscores, and begin with no digit.",
        )
    return name


def environment_value(value: Any) -> str:
    """The value of an environment variable. It is never repeated in a message: it may be secret."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WrongValueError(
            f"It is {kind_of(value)}; an environment variable is a text, "
            "and programs differ in what they take for true.",
            'Write the text that the program expects, in quotes: "1".',
        )
    text = value if isinstance(value, str) else shown(value)
    if text and not text.isprintable():
        raise WrongValueError(
            "It holds a line break or another control character.",
            "Write it on one line.",
        )
    return text


def cores(value: Any) -> tuple[int, ...]:
    """CPU cores in the notation of a cpuset: `0`, `0-3`, `0,2,4-7`."""
    text = line(value).replace(" ", "")
    remedy = 'Write core numbers as in cores: "0-3" or cores: "0,2".'
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if not match:
            raise WrongValueError(f"{shown(part)} is neither a core number nor a range.", remedy)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise WrongValueError(f"The range {part} ends before it begins.", remedy)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def ipv4_network(widest: int, narrowest: int) -> Reader[ipaddress.IPv4Network]:
    """A private IPv4 network with a prefix length from `widest` to `narrowest`."""
    rule = f"a private IPv4 network from /{widest} to /{narrowest}, such as 10.213.0.0/{narrowest}"

    def read(value: Any) -> ipaddress.IPv4Network:
        try:
            network = ipaddress.IPv4Network(line(value))
        except ValueError as problem:
            raise WrongValueError(f"It is no IPv4 network ({problem}).", f"Write {rule}.") from problem
        if not (network.is_private and widest <= network.prefixlen <= narrowest):
            raise WrongValueError(f"It is not {rule}.", f"Write {rule}.")
        return network

    return read


def ip_address(value: Any) -> str:
    """An IPv4 or IPv6 address."""
    try:
        return str(ipaddress.ip_address(line(value)))
    except ValueError as problem:
        raise WrongValueError(
            f"It is no IP address ({problem}).", "Write an address such as 0.0.0.0."
        ) from problem
