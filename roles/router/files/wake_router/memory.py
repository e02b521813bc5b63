"""What the router has learned about each service and keeps over restarts: canary, level-2 trust, wake
times, pin.

Nothing here is needed to be right: a damaged or missing file means that it has to be learned again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from wake_router.canary import Answer
from wake_router.durable import read_json, replace_file
from wake_router.registry import Service

SCHEMA_VERSION: Final = 1
SAMPLES_KEPT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is known about one service. The canary and the level-2 fields hold for one definition of its
    engine.
    """

    definition: str = ""
    canary: Answer | None = None
    image_canary: Answer | None = None
    """What it said about the canary's picture; None for one that sees nothing."""
    canary_attempts: int = 0
    """How often recording one was begun; an engine that doesn't survive it isn't asked again and again."""
    level_2_round_trips: int = 0
    level_2_broken: str | None = None
    pinned: bool = False
    wake_seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def for_definition(self, definition: str) -> Memory:
        """The same without what was learned about another definition."""
        if definition == self.definition:
            return self
        return Memory(definition=definition, pinned=self.pinned, wake_seconds=self.wake_seconds)

    def with_sample(self, depth: str, seconds: float) -> Memory:
        """One more measured wake."""
        samples = (*self.wake_seconds.get(depth, ()), round(seconds, 3))[-SAMPLES_KEPT:]
        return replace(self, wake_seconds={**self.wake_seconds, depth: samples})


class MemoryStore:
    """One small file per service under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, service: str) -> Memory:
        """What is known; an empty memory when the file is missing or damaged."""
        try:
            return _parse(read_json(self._folder / f"{service}.json"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Memory()

    def write(self, service: str, memory: Memory) -> None:
        """Replace what is known; raises DurableWriteError."""
        replace_file(self._folder / f"{service}.json", json.dumps(_render(memory)).encode())


def _render(memory: Memory) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "definition": memory.definition,
        "canary": _render_answer(memory.canary),
        "image_canary": _render_answer(memory.image_canary),
        "canary_attempts": memory.canary_attempts,
        "level_2_round_trips": memory.level_2_round_trips,
        "level_2_broken": memory.level_2_broken,
        "pinned": memory.pinned,
        "wake_seconds": memory.wake_seconds,
    }


def _render_answer(answer: Answer | None) -> dict[str, Any] | None:
    return None if answer is None else {"kind": answer.kind, "rows": answer.rows, "tokens": answer.tokens}


def _parse(document: dict[str, Any]) -> Memory:
    if document["schema_version"] != SCHEMA_VERSION:
        return Memory()
    canary, image_canary = document["canary"], document.get("image_canary")
    return Memory(
        definition=str(document["definition"]),
        canary=canary and _parse_answer(canary),
        image_canary=image_canary and _parse_answer(image_canary),
        canary_attempts=int(document["canary_attempts"]),
        level_2_round_trips=int(document["level_2_round_trips"]),
        level_2_broken=document["level_2_broken"],
        pinned=bool(document["pinned"]),
        wake_seconds={
            str(depth): tuple(float(value) for value in values)
            for depth, values in document["wake_seconds"].items()
        },
    )


def _parse_answer(document: dict[str, Any]) -> Answer:
    rows = tuple(tuple(float(value) for value in row) for row in document["rows"])
    return Answer(str(document["kind"]), rows, tuple(str(token) for token in document["tokens"]))


def level_2_verdict(service: Service, memory: Memory) -> tuple[bool, str]:
    """Whether a timer may discard a service's weights, and why (not)."""
    allowed = service.allow_level_2
    if allowed == "always":
        return True, "allowed by its declaration (allow_level_2: always)"
    if allowed == "never":
        return False, "forbidden by its declaration (allow_level_2: never)"
    if memory.level_2_broken is not None:
        return False, f"it came back broken: {memory.level_2_broken}"
    if memory.level_2_round_trips:
        times = memory.level_2_round_trips
        return True, "proven by one round trip" if times == 1 else f"proven by {times} round trips"
    if memory.canary is None and not service.may_record_canary:
        return (
            False,
            "not proven, and no canary may be recorded: nobody has read its weights' values",
        )
    if memory.canary is None:
        orders = f"vllmctl restart {service.name} records one, then vllmctl prove {service.name} proves it"
        return False, f"not proven yet, and no canary is recorded: {orders}"
    return False, f"not proven yet (vllmctl prove {service.name} does it)"
