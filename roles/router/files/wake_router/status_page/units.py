"""Numbers and moments as people read them, each with its unit. Pure."""

from __future__ import annotations

from html import escape
from typing import Final

_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20))


def duration(seconds: float | None) -> str:
    """A span of time for people; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def moment(timestamp: str) -> str:
    """An ISO 8601 moment in UTC, to the minute, as markup."""
    return f'<time datetime="{escape(timestamp)}">{escape(timestamp[:16].replace("T", " "))} UTC</time>'


def size(count: int | None) -> str:
    """A number of bytes: 0 MiB, 91 MiB, 34.2 GiB."""
    if count is None:
        return "unknown"
    unit, factor = next((each for each in _UNITS if count >= each[1]), _UNITS[-1])
    return f"{count / factor:.0f} MiB" if unit == "MiB" else f"{count / factor:.1f} {unit}"
