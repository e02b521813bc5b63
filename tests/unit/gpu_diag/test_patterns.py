"""The table of what other patterns detect is that of the code, and this project's own column is all yes."""

from __future__ import annotations

from gpu_diag.devices.faults import fault_names

from tests.hardware.patterns import BEGIN, END, PAGE, PATTERNS, pattern_detects


def rows() -> dict[str, list[str]]:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_fault_has_a_row_and_this_project_sees_each() -> None:
    assert list(rows()) == fault_names(), "write it anew: python tests/hardware/patterns.py"
    assert {cells[-1] for cells in rows().values()} == {"yes"}


def test_the_cells_of_other_patterns_are_those_of_the_code() -> None:
    for name, cells in rows().items():
        found = ["yes" if pattern_detects(pattern, name) else "**no**" for pattern in PATTERNS]
        assert found == cells[:-1], f"{name}: write it anew: python tests/hardware/patterns.py"


def test_a_period_cannot_see_pages_that_are_off_by_itself() -> None:
    ramp, period = PATTERNS[1], PATTERNS[2]
    assert not pattern_detects(ramp, "swapped_pages_4k")
    assert not pattern_detects(period, "swapped_pages_2m")
    assert pattern_detects(period, "swapped_pages_4k")
