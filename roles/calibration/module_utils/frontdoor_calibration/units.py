"""Numbers as people read them, each with its unit. Pure."""

from __future__ import annotations

_GIB = 2**30
_MIB = 2**20


def duration(seconds: float) -> str:
    """A time with its unit."""
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def size(count: float) -> str:
    """A number of bytes with its unit."""
    return f"{count / _GIB:.2f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"
