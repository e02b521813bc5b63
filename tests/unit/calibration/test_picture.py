"""The picture beside the page, read as the XML that it is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from frontdoor_calibration import picture
from frontdoor_calibration.figures import DEPTHS, Measurement, Reading, Round
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30
NAMESPACE = "{http://www.w3.org/2000/svg}"
ON_CPU = Measurement("embed", "Small", "2026-08-12T09:00:00Z", True, (), "", "")
ON_GPU = replace(
    ON_CPU,
    service="text",
    model="Big-30B",
    on_cpu=False,
    rounds=tuple(
        Round(
            {},
            {
                "awake": Reading(4 * GIB, 0, {"GPU-1": 40 * GIB, "GPU-2": 41 * GIB}),
                "sleeping": Reading((70 + more) * GIB, 0, {"GPU-1": 2 * GIB, "GPU-2": 2 * GIB}),
            },
        )
        for more in (0, 10, 4)
    ),
)


def of_sizes(*sizes: int) -> Measurement:
    """One round, with the host's memory at each depth."""
    memory = {depth: Reading(size, 0) for depth, size in zip(DEPTHS, sizes, strict=False)}
    return replace(ON_CPU, rounds=(Round({}, memory),))


def drawn(*measured: Measurement) -> ElementTree.Element:
    """The picture, as a reader of XML takes it."""
    found = picture.picture(measured)
    assert found is not None
    return ElementTree.fromstring(found)


def elements(root: ElementTree.Element, name: str, kind: str | None = None) -> list[ElementTree.Element]:
    found = root.iter(f"{NAMESPACE}{name}")
    return [each for each in found if kind is None or each.get("class") == kind]


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in elements(root, "text")]


def lengths(root: ElementTree.Element, kind: str) -> list[float]:
    """Of the bars of a kind; the first one is the legend's."""
    return [float(each.get("width", "nan")) for each in elements(root, "rect", kind)[1:]]


def test_each_service_has_a_bar_at_each_depth_with_its_value_and_unit() -> None:
    root = drawn(of_sizes(2 * GIB, GIB, GIB // 2), ON_GPU)
    shown = texts(root)
    assert [each for each in shown if "(" in each] == ["embed (Small)", "text (Big-30B)"]
    first, second = shown.index("embed (Small)"), shown.index("text (Big-30B)")
    assert shown[first + 1 : second] == [
        *("awake, host", "2.00 GiB", "sleeping, host", "1.00 GiB", "offloaded, host", "512 MiB")
    ]
    assert shown[second + 1 :] == [
        *("awake, host", "4.00 GiB", "awake, GPU", "41.00 GiB"),
        *("sleeping, host", "74.00 GiB", "sleeping, GPU", "2.00 GiB"),
        *("offloaded, host", "not measured", "offloaded, GPU", "not measured"),
    ]


def test_bars_are_as_long_as_what_they_show() -> None:
    root = drawn(of_sizes(2 * GIB, GIB, GIB // 2), ON_GPU)
    unit = picture.BAR_LENGTH / 80  # the largest value is one round's 80 GiB
    assert lengths(root, "host") == pytest.approx([each * unit for each in (2, 1, 0.5, 4, 74)], abs=0.01)
    assert lengths(root, "gpu") == pytest.approx([41 * unit, 2 * unit], abs=0.01)


@given(st.lists(st.integers(0, 2**50), min_size=3, max_size=3))
def test_lengths_are_proportional(sizes: list[int]) -> None:
    if max(sizes) == 0:
        assert picture.picture([of_sizes(*sizes)]) is None
        return
    found = lengths(drawn(of_sizes(*sizes)), "host")
    longest = max(sizes)
    wanted = [max(1.0, picture.BAR_LENGTH * size / longest) for size in sizes if size > 0]
    assert found == pytest.approx(wanted, abs=0.01)


def test_rounds_that_differ_have_a_line_from_the_least_to_the_largest() -> None:
    (line,) = elements(drawn(ON_GPU), "line")
    start, end = (float(line.get(name, "nan")) - picture.BAR_LEFT for name in ("x1", "x2"))
    assert (start / end, end) == pytest.approx((70 / 80, picture.BAR_LENGTH), abs=0.001)


def test_everything_lies_within_the_picture_and_no_rows_overlap() -> None:
    root = drawn(replace(ON_GPU, model="m" * 300), of_sizes(80 * GIB))
    width, height = (float(each) for each in root.get("viewBox", "").split()[2:])
    for each in [*elements(root, "rect"), *elements(root, "text")]:
        x, y = float(each.get("x", 0)), float(each.get("y", 0))
        # A letter of 13 px is 8 px wide on average at most.
        wide = float(each.get("width", 0)) or 8 * len(each.text or "")
        assert x >= 0 and x + wide <= width + 16, each.text
        assert 0 <= y <= height
    tops = [float(each.get("y", 0)) for each in elements(root, "rect", "host")]
    assert all(after - before >= 14 for before, after in pairwise(tops))


@given(st.text(), st.text())
def test_odd_names_are_names_and_nothing_else(service: str, model: str) -> None:
    root = drawn(replace(of_sizes(GIB), service=service, model=model))
    plain = drawn(of_sizes(GIB))
    assert [each.tag for each in root.iter()] == [each.tag for each in plain.iter()]


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    name = "</text><script>alert('&amp;')</script>"
    root = drawn(replace(of_sizes(GIB), model=name))
    assert f"embed ({name})" in texts(root)
    assert "\ufffd" in texts(drawn(replace(of_sizes(GIB), model="a\0b\ud800c")))[-7]
    (told,) = elements(root, "desc")
    assert told.text == "embed: awake host 1.00 GiB, sleeping host not measured, offloaded host not measured"


def test_the_same_figures_give_the_same_bytes() -> None:
    assert picture.picture([ON_GPU]) == picture.picture([replace(ON_GPU)])


def test_nothing_outside_is_needed() -> None:
    text = picture.picture([ON_GPU]) or ""
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|url\(|@import|<script|<image|<foreignObject|\bon\w+=", text)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_it_can_be_read_in_light_and_in_dark() -> None:
    (style,) = elements(drawn(ON_GPU), "style")
    light, dark = (style.text or "").split("@media (prefers-color-scheme: dark)")
    for part in (light, dark):
        colours = dict(re.findall(r"^\.?(\w+) \{.*?(?:fill|stroke): (#[0-9a-f]{6});", part, re.MULTILINE))
        assert colours.keys() >= {"text", "ground", "host", "gpu", "range"}
        assert contrast(colours["text"], colours["ground"]) >= 7
        for bar in ("host", "gpu"):
            assert contrast(colours[bar], colours["ground"]) >= 3
