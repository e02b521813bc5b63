"""The page for people."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frontdoor_calibration import page, units
from frontdoor_calibration.figures import Measurement, Reading, Round, spread
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30
ON_GPU = Measurement(
    service="text",
    model="Big-30B",
    measured_at="2026-08-12T09:00:00Z",
    on_cpu=False,
    rounds=tuple(
        Round(
            {"start": 60.0 + extra, "sleep": 5.0, "wake": 2.0 + extra},
            {
                "awake": Reading(4 * GIB, 90 * GIB, {"GPU-1": 40 * GIB, "GPU-2": 41 * GIB}),
                "sleeping": Reading(70 * GIB, 24 * GIB, {"GPU-1": 2 * GIB, "GPU-2": 3 * GIB}),
            },
        )
        for extra in (0.0, 1.5, 0.5)
    ),
    level_2="forbidden by the registry",
    canary="matched",
    notes=("level 2 isn't measured",),
)
ON_CPU = replace(
    ON_GPU,
    service="embed",
    on_cpu=True,
    kv_cache_bytes=GIB,
    rounds=(Round({"sleep": 0.25}, {"awake": Reading(2 * GIB, 0), "sleeping": Reading(GIB // 2, 0)}),),
    notes=(),
)


def row(text: str, *cells: str) -> str:
    return next(line for line in text.splitlines() if all(f"| {cell} |" in line for cell in cells))


def test_tables_have_medians_with_their_spread_and_units() -> None:
    text = page.page([ON_GPU], "default")
    assert "| 2.50 s (2.00 s to 3.50 s, 3 rounds) |" in row(text, "text", "sleeping → awake")
    assert "| not measured |" in row(text, "text", "offloaded → awake")
    assert "41.00 GiB (41.00 GiB to 41.00 GiB, 3 rounds)" in row(text, "text", "awake")
    assert row(text, "text", "Big-30B").count("GiB") == 3
    assert "- text: level 2 isn't measured" in text
    assert "On CPU devices" not in text


def test_on_cpu_devices_the_page_says_what_it_cannot_show() -> None:
    text = page.page([ON_CPU], "rehearsal")
    assert "no memory of its own (cpu)" in row(text, "embed", "sleeping")
    assert "| 3.00 GiB |" in row(text, "embed", "Big-30B"), "with the whole KV cache"
    assert "0.25 s (one round)" in text
    for word in ("no GPU memory", "no pinned memory", "KV cache that no request has touched"):
        assert word in text


def test_every_table_has_as_many_cells_in_each_line() -> None:
    block: list[str] = []
    awkward = replace(ON_GPU, model="a|b\nc")
    for line in [*page.page([awkward, ON_CPU], "default").splitlines(), ""]:
        if line.startswith("|"):
            block.append(line.replace("\\|", ""))
        elif block:
            assert len({each.count("|") for each in block}) == 1
            block = []


def test_the_page_shows_the_picture_where_there_is_one() -> None:
    picture = "![Memory by service and depth, as bars](memory.svg)"
    assert picture in page.page([ON_GPU], "default").splitlines()
    assert picture not in page.page(
        [replace(ON_CPU, rounds=(Round({}, {"awake": Reading(0, 0)}),))], "default"
    )


def test_nothing_measured_is_said() -> None:
    assert "Nothing has been measured yet." in page.page([], "default")


@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=8))
def test_bars_grow_with_what_they_show(values: list[float]) -> None:
    marks = [(f"m{number}", spread([value])) for number, value in enumerate(values)]
    lines = page.bars(marks, units.duration)
    if max(values) == 0:
        assert lines == []
        return
    lengths = [line.count("█") for line in lines[1:-1]]
    assert max(lengths) == page.BAR_CELLS
    pairs = sorted(zip(values, lengths, strict=True))
    assert [length for _, length in pairs] == sorted(lengths)
    assert all((length > 0) == (value > 0) for value, length in pairs)


@pytest.mark.parametrize(
    ("number", "words"), [(0.123, "0.12 s"), (9.99, "9.99 s"), (61.4, "61 s"), (0.0, "0.00 s")]
)
def test_times_have_their_unit(number: float, words: str) -> None:
    assert units.duration(number) == words


@pytest.mark.parametrize(("number", "words"), [(0, "0 MiB"), (GIB, "1.00 GiB"), (GIB // 2, "512 MiB")])
def test_sizes_have_their_unit(number: int, words: str) -> None:
    assert units.size(number) == words
