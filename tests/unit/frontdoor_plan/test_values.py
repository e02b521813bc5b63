from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from frontdoor_plan import values
from frontdoor_plan.values import WrongValueError

_SLOT = values.whole_number(1, 99)
_FRACTION = values.decimal_number("0", "1", "a fraction")


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (_SLOT, 7, 7),
        (_SLOT, "7", 7),
        (_SLOT, " 07 ", 7),
        (_SLOT, 7.0, 7),
        (_FRACTION, "0.10", Decimal("0.10")),
        (_FRACTION, 0.1, Decimal("0.1")),
        (_FRACTION, 1, Decimal(1)),
        (values.boolean, "True", True),
        (values.boolean, "no", False),
        (values.boolean, False, False),
        (values.line, 5, "5"),
        (values.line, " text ", "text"),
        (values.list_of(values.word, single=True), "one", ("one",)),
        (values.list_of(values.word), ["one", 2], ("one", "2")),
        (values.cores, "0-2,5", (0, 1, 2, 5)),
        (values.cores, 0, (0,)),
        (values.cores, "3, 1", (1, 3)),
        (values.environment_value, 1, "1"),
        (values.environment_value, "", ""),
        (values.ip_address, "::", "::"),
    ],
)
def test_what_is_unambiguous_is_coerced(read: values.Reader[Any], value: Any, expected: Any) -> None:
    assert read(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "why"),
    [
        (_SLOT, True, "boolean"),
        (_SLOT, None, "nothing"),
        (_SLOT, 0, "outside"),
        (_SLOT, 100, "outside"),
        (_SLOT, 1.5, "number"),
        (_SLOT, "one", "text"),
        (_SLOT, [1], "list"),
        (_FRACTION, "0,5", "text"),
        (_FRACTION, float("nan"), "number"),
        (_FRACTION, float("inf"), "number"),
        (_FRACTION, 0, "not above 0"),
        (_FRACTION, "1.0000000001", "at most 1"),
        (_FRACTION, True, "boolean"),
        (values.boolean, 1, "number"),
        (values.boolean, "maybe", "text"),
        (values.line, "", "empty"),
        (values.line, "a\nb", "line break"),
        (values.line, {}, "mapping"),
        (values.word, "two words", "space"),
        (values.list_of(values.word), "one", "text"),
        (values.list_of(values.word, single=True), {"a": 1}, "mapping"),
        (values.cores, "3-1", "ends before it begins"),
        (values.cores, "0,,1", "neither"),
        (values.cores, "all", "neither"),
        (values.environment_value, True, "boolean"),
        (values.environment_value, "a\nb", "line break"),
        (values.environment_name, "1A", "no name"),
        (values.environment_name, "A B", "no name"),
        (values.one_of("a", "b"), "c", "none of: a, b"),
        (values.ipv4_network(8, 21), "10.0.0.0/24", "not a private"),
        (values.ipv4_network(8, 21), "8.8.0.0/16", "not a private"),
        (values.ipv4_network(8, 21), "10.0.0.1/21", "no IPv4 network"),
        (values.ip_address, "localhost", "no IP address"),
    ],
)
def test_everything_else_is_refused_with_a_reason(read: values.Reader[Any], value: Any, why: str) -> None:
    with pytest.raises(WrongValueError, match=why) as refused:
        read(value)
    assert refused.value.remedy.endswith(".")


@pytest.mark.parametrize(
    ("value", "example"),
    [("0,5", "0.5"), ("88%", "0.88"), ("88 %", "0.88"), (88, "0.88"), ("12,5%", "0.125"), ("0.5.1", "0.5"),
     (-1, "0.5"), ("100%", "1"), ("8 GiB", "0.5"), (float("inf"), "0.5"), (["0,7"], "0.5"), (None, "0.5")],
)  # fmt: skip
def test_the_example_for_a_share_can_be_read(value: Any, example: str) -> None:
    with pytest.raises(WrongValueError) as refused:
        _FRACTION(value)
    assert refused.value.remedy.endswith(f", such as {example}.")
    assert _FRACTION(example) > 0


@pytest.mark.parametrize(
    ("value", "example"), [("2,5", "2.5"), ("16 GiB", "16"), ("16GB", "16"), ("8%", "4"), (9999, "4")]
)
def test_the_example_for_a_size_can_be_read(value: Any, example: str) -> None:
    read = values.decimal_number("0", "4096", "a number of GiB", "4")
    with pytest.raises(WrongValueError) as refused:
        read(value)
    assert refused.value.remedy.endswith(f", such as {example}.")
    assert read(example) > 0


def test_a_secret_in_an_environment_is_not_repeated() -> None:
    with pytest.raises(WrongValueError) as refused:
        values.environment_value("hf_secret\n")
    assert "hf_secret" not in refused.value.why + refused.value.remedy


def test_a_number_too_large_to_print_is_still_described() -> None:
    assert values.shown(10**5000) == "a int too large to print"


@pytest.mark.parametrize("read", [_SLOT, _FRACTION, values.cores], ids=["slot", "fraction", "cores"])
def test_numbers_beyond_all_bounds_are_refused_as_others_are(read: values.Reader[Any]) -> None:
    for value in (10**5000, "1" * 5000, 1e300):
        with pytest.raises(WrongValueError):
            read(value)
