"""What the stand-in's engine remembers: sleep, weights, memory, and the faults that were ordered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Dialect = Literal["0.27.1", "0.32.0"]
TAGS = frozenset({"weights", "kv_cache"})


@dataclass(slots=True)
class Faults:
    """What goes wrong, on order; every field can be set at run time with POST /standin/faults."""

    sleep_seconds: float = 0.0
    wake_seconds: float = 0.0
    reload_seconds: float = 0.0
    first_token_seconds: float = 0.0
    chunk_seconds: float = 0.001
    fail: dict[str, int] = field(default_factory=dict)
    """Route -> status of its answer."""
    hang: list[str] = field(default_factory=list)
    """Routes that never answer. "*": all but /health, /metrics and /v1/models (a wedged engine core)."""
    drop: list[str] = field(default_factory=list)
    """Routes whose connection is cut without an answer."""
    die: list[str] = field(default_factory=list)
    """Routes that kill the process, which then exits with code 0, as vLLM's server does."""
    die_after_chunks: int | None = None
    cut_after_chunks: int | None = None
    """The stream's connection is cut after so many chunks; the process goes on."""
    reload_keeps_garbage: bool = False
    reload_loses_sight: bool = False
    """A reload leaves garbage in the part that sees; text is sound."""
    garbage: bool = False
    nan_answers: bool = False
    corrupted_requests: int = 0
    no_memory: int = 0
    """So many wake calls find too little device memory."""
    no_memory_while_awake: str | None = None
    """Wake calls find too little device memory while the engine at this address is awake."""
    memory_of_others: int = 0
    """So many bytes of each device are used by somebody else."""
    memory_problem: str | None = None
    """Why its launcher can't tell what is used."""
    memory_status: int = 200
    """With which its launcher answers /memory; 404: one of an earlier release."""
    half_woken_is_garbage: bool = False
    """A wake that ran out of memory leaves bad weights behind."""

    def update(self, wishes: dict[str, Any]) -> None:
        """Set some; raises ValueError for an unknown one."""
        known = {item.name for item in fields(self)}
        for name, value in wishes.items():
            if name not in known:
                raise ValueError(f"there is no fault '{name}'")
            setattr(self, name, value)


@dataclass(slots=True)
class Brain:
    """The engine's core."""

    dialect: Dialect
    faults: Faults = field(default_factory=Faults)
    sleeping: set[str] = field(default_factory=set)
    level: int = 0
    weights_good: bool = True
    vision_good: bool = True
    """Whether the part of the weights that sees is good; only a fault makes it bad by itself."""
    memory: dict[str, int] = field(default_factory=dict)
    memory_awake_bytes: int = 8_000_000_000
    memory_asleep_bytes: int = 1_000_000_000
    running: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.awake.set()
        self.idle.set()
        self._fill(self.memory_awake_bytes)

    @property
    def is_sleeping(self) -> bool:
        """As /is_sleeping tells it: any part still asleep."""
        return bool(self.sleeping)

    def _fill(self, size: int) -> None:
        for device in self.memory:
            self.memory[device] = size

    async def sleep(self, level: int, mode: str) -> None:
        """Blocks until done; a second sleep does nothing, whatever its level."""
        async with self.turn:
            if self.is_sleeping:
                return
            if mode == "wait":
                await self.idle.wait()
            elif mode == "abort":
                self.aborted.set()
                self.aborted = asyncio.Event()
            await asyncio.sleep(self.faults.sleep_seconds)
            if level == 0:
                return
            self.awake.clear()
            self.sleeping = set(TAGS)
            self.level = level
            if level >= 2:
                self.weights_good = False
            self._fill(self.memory_asleep_bytes)

    async def wake(self, tags: list[str]) -> None:
        """Blocks until done; a tag that doesn't sleep is ignored."""
        async with self.turn:
            await asyncio.sleep(self.faults.wake_seconds)
            if not self.is_sleeping:
                return
            if not tags and self.sleeping != TAGS and self.dialect == "0.27.1":
                # An untagged wake after a tagged one maps fresh pages over the live weights.
                self.weights_good = False
            self.sleeping -= set(tags) if tags else TAGS
            if not self.sleeping:
                self.awake.set()
                self._fill(self.memory_awake_bytes)

    async def reload_weights(self) -> None:
        """Make the weights good again, unless they are still asleep."""
        async with self.turn:
            await asyncio.sleep(self.faults.reload_seconds)
            if "weights" not in self.sleeping and not self.faults.reload_keeps_garbage:
                self.weights_good = True
                self.vision_good = not self.faults.reload_loses_sight

    def begin(self) -> None:
        """A request starts to run."""
        self.running += 1
        self.idle.clear()

    def end(self) -> None:
        """A request is done."""
        self.running -= 1
        if not self.running:
            self.idle.set()
