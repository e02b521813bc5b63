"""One service in words and numbers: its depth and conditions, what can be done to it, and all that is known.

The words are those that users see.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SOMEBODY: Final = "somebody"
"""Who gave an order: without a name, or before the router restarted."""


class Depth(StrEnum):
    """How far down a service is; the words users see."""

    AWAKE = "awake"
    SLEEPING = "sleeping"
    OFFLOADED = "offloaded"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    WAKING = "waking"
    FALLING_ASLEEP = "falling_asleep"

    @property
    def words(self) -> str:
        """As it stands in sentences."""
        return self.value.replace("_", " ")


class Condition(StrEnum):
    """What holds beside the depth."""

    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    UNPROVEN = "unproven"
    """Its weights aren't known to be good: its canary has to say so before it serves."""


class Transition(StrEnum):
    """What can be done to an engine; one at a time per device."""

    WAKE = "wake"
    SLEEP = "sleep"
    OFFLOAD = "offload"
    RESTART = "restart"


class Step(StrEnum):
    """One call of a transition. The intent store names it on disk before it is made."""

    RECORD_CANARY = "record_canary"
    SLEEP_LEVEL_1 = "sleep_level_1"
    SLEEP_LEVEL_2 = "sleep_level_2"
    WAKE_ALL = "wake_all"
    WAKE_WEIGHTS = "wake_weights"
    RELOAD_WEIGHTS = "reload_weights"
    WAKE_KV_CACHE = "wake_kv_cache"
    RESET_PREFIX_CACHE = "reset_prefix_cache"
    CANARY = "canary"
    ORDER_RESTART = "order_restart"


RESTING: Final = frozenset({Depth.AWAKE, Depth.SLEEPING, Depth.OFFLOADED})
"""Depths in which the engine runs and no transition is under way."""

REPAIR: Final = frozenset({Condition.QUARANTINED, Condition.FAILED})
"""Conditions under which the router doesn't trust the engine and repairs it."""

PARKED: Final = frozenset({Condition.DRAINING, Condition.MAINTENANCE})
"""Conditions under which requests wait and only what a person orders is done."""

TARGET: Final = {
    Transition.WAKE: Depth.AWAKE,
    Transition.SLEEP: Depth.SLEEPING,
    Transition.OFFLOAD: Depth.OFFLOADED,
    Transition.RESTART: Depth.RESTARTING,
}


def steps_of(transition: Transition, from_depth: Depth) -> tuple[Step, ...]:
    """The engine calls of a transition, in their only right order (vLLM 0.27.1 to 0.32.0)."""
    if transition is Transition.SLEEP:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_1)
    if transition is Transition.OFFLOAD:
        return (Step.RECORD_CANARY, Step.SLEEP_LEVEL_2)
    if transition is Transition.RESTART:
        return (Step.ORDER_RESTART,)
    if from_depth is Depth.AWAKE:
        return (Step.CANARY,)
    if from_depth is Depth.SLEEPING:
        return (Step.WAKE_ALL, Step.CANARY)
    return (
        Step.WAKE_WEIGHTS,
        Step.RELOAD_WEIGHTS,
        Step.WAKE_KV_CACHE,
        Step.RESET_PREFIX_CACHE,
        Step.CANARY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the registry and the settings say about one service. A timer of 0 seconds is off."""

    idle_sleep_seconds: float = 900.0
    idle_offload_seconds: float = 10800.0
    pinned: bool = False
    level_2_allowed: bool = False
    reload_trusted: bool = True
    """Whether reloading weights is believed to bring this model back (`allow_level_2` isn't `never`)."""
    restartable: bool = False
    """Whether the engine's launcher takes the router's orders."""
    held_max: int = 2048
    cordoned: bool = False


class Presence(StrEnum):
    """What can be seen of an engine's process."""

    ABSENT = "absent"
    BOOTING = "booting"
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the intent store knew about a service when the router started."""

    incarnation: str
    depth: Depth
    open_step: Step | None = None
    proven: bool = True
    """False: the engine itself isn't trusted, so its own word about its depth isn't believed either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """Everything the router knows about one service. Times are seconds of one monotonic clock."""

    depth: Depth = Depth.STOPPED
    since: float = 0.0
    conditions: frozenset[Condition] = frozenset()
    incarnation: str | None = None
    seen_booting: bool = False
    record: Record | None = None
    in_flight: int = 0
    held: int = 0
    last_activity: float = 0.0
    pinned: bool = False
    fresh: bool = False
    """Never put to sleep since its process started, as far as the router knows for sure."""
    called: bool = False
    """A request has asked for it since it was last awake. Its wake goes on even if nobody waits any more."""
    waking_since: float | None = None
    """When somebody began to wait for it to serve again."""
    suspect: bool = False
    """It was quarantined and has not been proven since; a new process of it has to pass its canary first."""
    restart_ordered: bool = False
    restart_refused: bool = False
    """The launcher of this incarnation couldn't restart it, so other ways of repair are tried."""
    memory_retries: int = 0
    evicted_for: str | None = None
    """The service for which it falls asleep, because the device has too little memory for both."""
    drain_until: float = 0.0
    maintenance_until: float = 0.0
    parked_by: str = SOMEBODY
    ordered: Depth | None = None
    ordered_by: str = SOMEBODY
    queued: Transition | None = None
    running: Transition | None = None
    from_depth: Depth = Depth.STOPPED
    epoch: int = 0
    failures: int = 0
    retry_at: float = 0.0
    reason: str = "the router has just started and looks for the engine"

    @property
    def serving(self) -> bool:
        """Whether a request may be forwarded now."""
        return self.depth is Depth.AWAKE and not self.conditions
