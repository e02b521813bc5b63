"""How far a download is, in words (pure; the controller's action plugin uses it too)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def progress(status: Mapping[str, Any] | None, seconds: float, started_bytes: int) -> str:
    """How far a pull is, for people; `seconds` since it was first seen with `started_bytes`."""
    if status is None or status["phase"] == "asking" or not status["total_bytes"]:
        return "asking the hub"
    done, total = int(status["done_bytes"]), int(status["total_bytes"])
    words = f"{status['phase']}: {done / 1e9:.2f} of {total / 1e9:.2f} GB"
    rate = (done - started_bytes) / seconds if seconds > 0 and done > started_bytes else 0.0
    if status["phase"] != "downloading" or not rate:
        return words
    return f"{words}, {rate / 1e6:.1f} MB/s, {max(0, total - done) / rate:.0f} s left"
