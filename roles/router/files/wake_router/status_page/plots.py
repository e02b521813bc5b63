"""Small pictures as SVG. Pure: numbers in, markup out, styled by classes only (no inline style)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

WIDTH: Final = 160
HEIGHT: Final = 36
_MARGIN: Final = 3


def seconds_plot(label: str, values: Sequence[float]) -> str:
    """Measured times in seconds as dots on a line, the oldest left; `label` is read out by screen readers."""
    if not values:
        return ""
    top = max(values) or 1.0
    points = [(_across(place, len(values)), _up(value / top)) for place, value in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points)
    title = html.escape(f"{label}: {len(values)} wakes, the last {values[-1]:.1f} s, the longest {top:.1f} s")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>'
        f'<polyline points="{line}"/>{dots}</svg>'
    )


def _across(place: int, count: int) -> float:
    return _MARGIN + (WIDTH - 2 * _MARGIN) * (place / (count - 1) if count > 1 else 0.5)


def _up(share: float) -> float:
    return HEIGHT - _MARGIN - (HEIGHT - 2 * _MARGIN) * share
