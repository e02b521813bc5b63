"""The picture beside the page: bars of memory by service and depth, as SVG. Pure.

The same figures give the same bytes. The picture stands alone: no script, no font, no other file; it has its
own ground, dark where the reader's screen is (prefers-color-scheme), so that it is readable on any page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .figures import DEPTHS, Measurement, Spread, device_sizes, host_sizes, spread
from .units import size

PICTURE = "memory.svg"
WIDTH = 760
BAR_LEFT = 170
BAR_LENGTH = 440
"""Of the largest value, in the picture's units."""
_ROW = 22
_BAR = 14
_HEAD = 62
_TITLE = 30
_LONGEST_TITLE = 90
_LEAST_BAR = 1.0
"""What isn't nothing can be seen."""

_NOT_IN_XML = re.compile("[^\t\n\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# In both, text has a contrast of at least 7 : 1 to the ground, and bars one of at least 3 : 1 (WCAG 2.2).
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1b1f24; }
.title { font-weight: 600; }
.ground { fill: #ffffff; }
.host { fill: #2b6cb0; }
.gpu { fill: #b4540a; }
.range { stroke: #1b1f24; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.ground { fill: #161b22; }
.host { fill: #58a6ff; }
.gpu { fill: #f0883e; }
.range { stroke: #e6edf3; }
}"""


@dataclass(frozen=True)
class Bar:
    """One line of a service: `kind` is ``host`` or ``gpu``; no spread: it wasn't measured."""

    depth: str
    kind: str
    found: Spread | None


def picture(measured: Sequence[Measurement]) -> str | None:
    """The picture; None where no size was measured."""
    services = [(each, bars(each)) for each in measured]
    values = [bar.found.largest for _, of_one in services for bar in of_one if bar.found]
    longest = max(values, default=0.0)
    if longest <= 0:
        return None
    body: list[str] = []
    top = _HEAD
    for each, of_one in services:
        body.append(_text(16, top + 20, f"{each.service} ({each.model})", "title"))
        top += _TITLE
        for bar in of_one:
            body += _row(bar, top, longest)
            top += _ROW
        top += 8
    return "\n".join([*_opening(top + 8, services), *body, "</svg>", ""])


def bars(measured: Measurement) -> list[Bar]:
    """What is shown of one service: the host's memory at every depth, and that of its fullest GPU."""
    found: list[Bar] = []
    for depth in DEPTHS:
        found.append(Bar(depth, "host", spread(host_sizes(measured, depth))))
        if not measured.on_cpu:
            found.append(Bar(depth, "gpu", spread(device_sizes(measured, depth))))
    return found


def _opening(height: int, services: Sequence[tuple[Measurement, list[Bar]]]) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title description">'
    )
    yield '<title id="title">Memory by service and depth</title>'
    told = "; ".join(f"{each.service}: {_told(of_one)}" for each, of_one in services)
    yield f'<desc id="description">{_escaped(told)}</desc>'
    yield f"<style>{_STYLE}</style>"
    yield f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
    yield _text(
        16, 24, "Memory by service and depth: median of the rounds, line from least to largest", "title"
    )
    yield f'<rect class="host" x="16" y="36" width="{_BAR}" height="{_BAR}"/>'
    yield _text(38, 48, "of the host")
    if any(bar.kind == "gpu" for _, of_one in services for bar in of_one):
        yield f'<rect class="gpu" x="{BAR_LEFT}" y="36" width="{_BAR}" height="{_BAR}"/>'
        yield _text(BAR_LEFT + 22, 48, "of the fullest GPU")


def _told(of_one: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.depth} {_NAMES[bar.kind]} {_value(bar.found)}" for bar in of_one)


_NAMES = {"host": "host", "gpu": "GPU"}


def _value(found: Spread | None) -> str:
    return "not measured" if found is None else size(found.median)


def _row(bar: Bar, top: int, longest: float) -> Iterator[str]:
    base = top + _BAR - 2
    yield _text(32, base, f"{bar.depth}, {_NAMES[bar.kind]}")
    end = float(BAR_LEFT)
    if bar.found is not None and bar.found.largest > 0:
        length = _length(bar.found.median, longest)
        yield (
            f'<rect class="{bar.kind}" x="{BAR_LEFT}" y="{top}" width="{_number(length)}" height="{_BAR}"/>'
        )
        end = BAR_LEFT + _length(bar.found.largest, longest)
        if bar.found.least < bar.found.largest:
            start, middle = BAR_LEFT + _length(bar.found.least, longest), top + _BAR // 2
            yield (
                f'<line class="range" x1="{_number(start)}" y1="{middle}" x2="{_number(end)}" y2="{middle}"/>'
            )
    yield _text(end + 8, base, _value(bar.found))


def _length(value: float, longest: float) -> float:
    return max(_LEAST_BAR, BAR_LENGTH * value / longest) if value > 0 else 0.0


def _text(x: float, y: float, content: str, style: str = "") -> str:
    shown = content if len(content) <= _LONGEST_TITLE else content[: _LONGEST_TITLE - 1] + "…"
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{_number(x)}" y="{_number(y)}">{_escaped(shown)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    """As XML 1.0 takes it, which knows no control characters, surrogates, U+FFFE and U+FFFF in any form."""
    return escape(_NOT_IN_XML.sub("\ufffd", text))
