"""Events in words. That every event of every router of the tests has words: support/router_log."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from wake_router import event_sentences
from wake_router.event_sentences import sentence, with_sentence

ROUTER = Path(event_sentences.__file__).parent


def emitted_kinds() -> set[str]:
    """The kinds that the router's code emits."""
    calls = (
        node
        for path in ROUTER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit"
    )
    return {str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)}


def test_each_kind_that_is_emitted_has_words_and_no_other() -> None:
    kinds = emitted_kinds()
    assert {"depth", "transition", "request"} <= kinds
    assert set(event_sentences._TELLERS) == kinds


DEPTH = {
    "event": "depth", "service": "text", "depth": "falling_asleep", "before": "awake", "conditions": [],
    "reason": "idle", "incarnation": "0" * 32, "in_flight": 0, "held": 0,
}  # fmt: skip
WAKE = {
    "event": "transition", "service": "text", "transition": "wake", "from_depth": "sleeping", "seconds": 2.34,
    "canary_seconds": 0.0, "cause": "a request came", "request": "r1", "key": None, "operator": None,
}  # fmt: skip
ADMIN = {
    "event": "admin", "method": "POST", "path": "/admin/services/text/wake", "status": 200,
    "client": "127.0.0.1:1", "operator": "deployment", "error": None,
}  # fmt: skip
REQUEST = {
    "event": "request", "id": "r1", "method": "POST", "path": "/v1/completions", "service": "text",
    "key": None, "status": 200, "error": None, "held_seconds": 0.0, "seconds": 1.25,
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (DEPTH, "is falling asleep, was awake: idle"),
        (
            DEPTH | {"conditions": ["quarantined"]},
            "is falling asleep (quarantined), was awake: idle",
        ),
        (
            DEPTH | {"depth": "awake", "conditions": ["draining"], "in_flight": 2, "held": 3},
            "is awake (draining): idle; requests: 2 in flight, 3 waiting",
        ),
        (WAKE, "was woken from sleeping in 2.3 s: a request came, first request r1"),
        (
            WAKE | {"key": "alice", "canary_seconds": 0.5},
            "was woken from sleeping in 2.3 s, 500 ms of it for its canary: "
            "a request came, first request r1 of key 'alice'",
        ),
        (WAKE | {"error": "no answer"}, "wake from sleeping failed after 2.3 s: no answer"),
        (
            WAKE | {"transition": "sleep", "from_depth": "awake", "seconds": 300},
            "fell asleep in 5 min, was awake",
        ),
        (ADMIN, "operator 'deployment' ordered 'wake' for text"),
        (ADMIN | {"path": "/admin/reload", "operator": None}, "somebody ordered 'reload'"),
        (
            ADMIN | {"path": "/admin/devices/left/cordon", "status": 403, "error": "No token."},
            "operator 'deployment' ordered 'cordon' for left, which failed (403): No token.",
        ),
        (ADMIN | {"status": 504}, "operator 'deployment' ordered 'wake' for text, which failed (504)"),
        (REQUEST, "POST /v1/completions answered 200 in 1.2 s (request r1)"),
        (
            REQUEST | {"key": "bob", "status": 503, "error": "gone", "held_seconds": 1.0},
            "POST /v1/completions answered 503 (gone) in 1.2 s, 1.0 s of it held (request r1 of key 'bob')",
        ),
        (
            {"event": "device", "device": "left", "cordoned": True},
            "device left is cordoned: nothing is woken on it",
        ),
        ({"event": "of a later release", "x": 1, "y": None}, "of a later release x: 1"),
    ],
)
def test_words(event: dict[str, Any], expected: str) -> None:
    assert sentence(event) == expected
    assert with_sentence(event) == {**event, "sentence": expected}
