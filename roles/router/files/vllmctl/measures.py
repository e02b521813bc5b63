"""Numbers as people read them, each with its unit. Pure."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """A span of time: 4.2 s, 42 s, 17 min, 3.5 h, 4 d; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def size(count: float | None) -> str:
    """A number of bytes: 512 KiB, 91 MiB, 34.2 GiB; a dash for none."""
    if count is None:
        return "-"
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def rate(per_second: float) -> str:
    """A number per second, with one decimal where it is small."""
    return f"{per_second:.1f}/s" if per_second < 100 else f"{per_second:.0f}/s"
