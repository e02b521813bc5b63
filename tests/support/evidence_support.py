"""Evidence as the probes write it, for recorded boxes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from gpu_diag.identity import identity_of

NOW = "2026-08-12T09:30:00.000000Z"
EARLIER = "2026-08-10T09:30:00.000000Z"
BEFORE_THAT = "2026-08-08T09:30:00.000000Z"


def document(
    facts: Mapping[str, Any],
    verdict: str,
    details: Mapping[str, Any],
    *,
    at: str = NOW,
    class_: str | None = None,
    **identity: Any,
) -> dict[str, Any]:
    """A document made on a box (in its present boot, unless `identity` says otherwise)."""
    return {
        "schema_version": 1,
        "tool": {"name": "recorded", "version": "1.0.0", "image_digest": None},
        "started_at": at,
        "finished_at": at,
        "identity": {**identity_of(facts), **identity},
        "verdict": verdict,
        "class": class_,
        "details": dict(details),
        "evidence": [f"recorded: {verdict}"],
        "remediation": [],
    }


def p2p(
    facts: Mapping[str, Any],
    corrupt: tuple[tuple[int, int], ...] = (),
    *,
    at: str = NOW,
    others: str = "clean",
    control_words: int = 1000,
    class_: str | None = None,
    verdict: str | None = None,
    **identity: Any,
) -> dict[str, Any]:
    """A p2p_check of all GPUs of a box, in which these ordered pairs are corrupt."""
    gpus = facts["gpus"]
    pairs = [
        {"source": a, "destination": b, "verdict": "corrupt" if (a, b) in corrupt else others}
        for a, b in permutations(range(len(gpus)), 2)
    ]
    details = {
        "devices": [{"name": gpu["name"], "uuid": gpu["uuid"]} for gpu in gpus],
        "pairs": pairs,
        "control_words": control_words,
        "runtime": "torch",
    }
    found = verdict or ("corrupt" if corrupt else others)
    return document(facts, found, details, at=at, class_=class_, **identity)


def integrity(
    facts: Mapping[str, Any], verdicts: Mapping[int, str] | None = None, *, at: str = NOW, **identity: Any
) -> dict[str, Any]:
    """An integrity test of all GPUs of a box, or of two shares of its processor where it has none."""
    wrong = verdicts or {}
    uuids = [gpu["uuid"] for gpu in facts["gpus"]] or [None, None]
    devices = [
        {"number": number, "name": "recorded", "uuid": uuid, "verdict": wrong.get(number, "clean")}
        for number, uuid in enumerate(uuids)
    ]
    details = {"devices": devices, "kind": "cuda" if facts["gpus"] else "cpu"}
    return document(facts, "corrupt" if wrong else "clean", details, at=at, **identity)


def control(
    facts: Mapping[str, Any], verdict: str = "clean", *, shares: int = 2, at: str = NOW, **identity: Any
) -> dict[str, Any]:
    """A control arm alone, over shares of the processor."""
    class_ = "control_failed" if verdict == "inconclusive" else None
    details = {"devices": [{"uuid": None}] * shares, "pairs": [], "control_words": 1000, "runtime": "cpu"}
    return document(facts, verdict, details, at=at, class_=class_, **identity)


def with_evidence(facts: Mapping[str, Any], **kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """The box with this evidence of some kinds, the newest first."""
    changed = copy.deepcopy(dict(facts))
    changed["evidence"] |= kinds
    return changed
