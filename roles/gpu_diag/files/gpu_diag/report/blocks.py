"""A report as blocks of text, and its two forms: Markdown and one HTML page that needs nothing else. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

_CODE = re.compile(r"`([^`]*)`")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #999; padding: .3rem .7rem; text-align: left; }
.corrupt, .hang, .failed { background: #f6c9c4; } .clean, .verified { background: #cfe8cf; }
.inconclusive, .unverified { background: #f6e7b5; }
code { background: #eee; padding: 0 .2rem; }
@media (prefers-color-scheme: dark) {
 body { background: #191919; color: #ddd; } code { background: #333; }
 .corrupt, .hang, .failed { background: #6d2720; } .clean, .verified { background: #245a28; }
 .inconclusive, .unverified { background: #6b5a17; }
}
"""


@dataclass(frozen=True)
class Heading:
    """A heading; ``level`` 1 is the title."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list, numbered or not."""

    texts: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a row of headings; a cell that is a verdict is coloured in HTML."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Heading | Paragraph | Items | Table


def to_markdown(blocks: Sequence[Block]) -> str:
    """The blocks as Markdown."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Items):
        marks = (f"{number}." if block.numbered else "-" for number in range(1, len(block.texts) + 1))
        return "\n".join(f"{mark} {text}" for mark, text in zip(marks, block.texts, strict=True))
    rows = [block.head, ["---"] * len(block.head), *block.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def to_html(blocks: Sequence[Block]) -> str:
    """The blocks as a page."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(_html(block) for block in blocks)
    head = f'<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>'
    page = f"<head>\n{head}\n</head>\n<body>\n{body}\n</body>"
    return f'<!doctype html>\n<html lang="en">\n{page}\n</html>\n'


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Items):
        tag = "ol" if block.numbered else "ul"
        return f"<{tag}>" + "".join(f"<li>{_inline(text)}</li>" for text in block.texts) + f"</{tag}>"
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in block.head)
    rows = "".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _html_cell(text: str) -> str:
    name = html.escape(text.split(" ")[0], quote=True)
    return f'<td class="{name}">{_inline(text)}</td>' if name.isidentifier() else f"<td>{_inline(text)}</td>"
