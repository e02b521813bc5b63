"""What a person may have meant by a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_LIKENESS = 0.6


def nearest(name: str, known: Collection[str], likeness: float = _LIKENESS) -> str | None:
    """The known name that is most like this one; None where none is like it. `likeness` is difflib's ratio:
    from 0 (nothing in common) to 1 (the same)."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return near[0] if near else None


def remedy(name: str, known: Collection[str]) -> str:
    """What to do about an unknown name, as a sentence."""
    near = nearest(name, known)
    if near is not None:
        return f"Did you mean {near}? Rename it, or remove it."
    return "Remove it, or rename it if it is your own variable."
