"""What the log of every router of the tests must be."""

from __future__ import annotations

import json

from wake_router.event_sentences import sentence

BY_OTHERS = ("request", "admin")
"""Kinds whose sentence holds a path that somebody has asked for."""


def assert_sound(log: str) -> None:
    """No mistake of its own, and each event is a sentence, without JSON or incarnations."""
    assert "internal_error" not in log
    assert "Traceback" not in log
    for line in log[: log.rfind("\n") + 1].splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            said = sentence(event)
            assert said, line
            assert not event.get("incarnation") or event["incarnation"] not in said, said
            assert event["event"] in BY_OTHERS or "{" not in said, said
