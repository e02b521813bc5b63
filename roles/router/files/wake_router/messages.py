"""What the pure core is told (events), and what it asks others to do (effects)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wake_router.service_state import SOMEBODY, Depth, Presence, Transition

# ---- events


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A client asks for this service. Answered by exactly one of Forward, Hold, Refuse."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The last byte of a forwarded request's response is out, or its client is gone."""


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A held request stopped waiting: its deadline passed, or its client is gone."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A person or a deployment wants the service at this depth (awake, sleeping or offloaded)."""

    depth: Depth
    by: str = SOMEBODY


@dataclass(frozen=True, slots=True)
class OrderWithdrawn:
    """The person who ordered a depth stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class PinChanged:
    """A person pins the service awake, or lets it sleep again."""

    pinned: bool


@dataclass(frozen=True, slots=True)
class TurnGranted:
    """The scheduler gives this service its devices for the transition it queued for."""


@dataclass(frozen=True, slots=True)
class TransitionSucceeded:
    """All steps are done and `/is_sleeping` confirmed the result. `epoch` as in StartTransition."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TransitionFailed:
    """A step failed or timed out.

    `unreachable`: nobody answered, the engine is probably gone. `untouched`: nothing has been done to the
    engine. `out_of_memory`: its device has too little free memory.
    """

    epoch: int
    reason: str
    unreachable: bool = False
    untouched: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """What a look at the engine showed. `epoch` is the service's when the look began.

    `born_here`: this incarnation began in this life of the router, so no other has given it orders.
    """

    epoch: int
    presence: Presence
    incarnation: str | None = None
    asleep: bool | None = None
    born_here: bool = False


@dataclass(frozen=True, slots=True)
class Distrusted:
    """An awake engine answered its canary wrongly, or counts corrupted answers. `epoch` as when it was
    asked.
    """

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """Take no new work; what is in flight has until `until`, then it is cut. Then maintenance follows."""

    until: float
    maintenance_until: float
    by: str = SOMEBODY


@dataclass(frozen=True, slots=True)
class MaintenanceOrdered:
    """Hold requests and leave the engine alone, until it is ended or `until` has passed."""

    until: float
    by: str = SOMEBODY


@dataclass(frozen=True, slots=True)
class MaintenanceEnded:
    """Draining and maintenance are over; held requests may go."""


@dataclass(frozen=True, slots=True)
class RestartOrdered:
    """A person wants a new process of the engine. It comes when nothing is in flight any more."""

    by: str = SOMEBODY


@dataclass(frozen=True, slots=True)
class RestartWithdrawn:
    """The person who ordered a restart stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Another service needs the memory of a shared device; this one is idle and was so the longest."""

    beneficiary: str


@dataclass(frozen=True, slots=True)
class NothingToEvict:
    """No neighbour can give memory at the moment."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    RequestArrived
    | RequestEnded
    | HoldEnded
    | Ordered
    | OrderWithdrawn
    | PinChanged
    | TurnGranted
    | TransitionSucceeded
    | TransitionFailed
    | Observed
    | Distrusted
    | DrainOrdered
    | MaintenanceOrdered
    | MaintenanceEnded
    | RestartOrdered
    | RestartWithdrawn
    | Evicted
    | NothingToEvict
    | Tick
)


# ---- effects


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the request to the engine now; it counts as in flight."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Let the request wait; it counts as held."""


class Refusal(StrEnum):
    """Why a request isn't even held."""

    QUEUE_FULL = "queue_full"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with 503 at once."""

    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Every held request goes to the engine, oldest first; they count as in flight already."""


@dataclass(frozen=True, slots=True)
class RefuseHeld:
    """Every held request gets a 503; they don't count as held any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestTurn:
    """Ask the scheduler for the service's devices."""

    transition: Transition


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """The service doesn't want its turn any more."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The service's devices are free again."""


@dataclass(frozen=True, slots=True)
class StartTransition:
    """Carry out a transition and report back with this epoch."""

    transition: Transition
    from_depth: Depth
    incarnation: str
    epoch: int
    fresh: bool = False
    repairing: bool = False
    unproven: bool = False


@dataclass(frozen=True, slots=True)
class AbandonTransition:
    """The engine it was for is gone: stop working on the transition; its result no longer matters."""


@dataclass(frozen=True, slots=True)
class CutInFlight:
    """End every request in flight visibly: an error event in a stream, a broken connection otherwise."""

    reason: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Write to the intent store that this incarnation is at this depth and nothing is under way."""

    incarnation: str
    depth: Depth
    proven: bool = True


@dataclass(frozen=True, slots=True)
class RememberParked:
    """Write to the disk that the service is parked until then (monotonic seconds); None: not any more."""

    until: float | None


@dataclass(frozen=True, slots=True)
class NeedMemory:
    """A wake found too little memory on its devices: ask the scheduler to free some."""


Effect = (
    Forward
    | Hold
    | Refuse
    | ReleaseHeld
    | RefuseHeld
    | RequestTurn
    | CancelTurn
    | EndTurn
    | StartTransition
    | AbandonTransition
    | CutInFlight
    | Remember
    | RememberParked
    | NeedMemory
)
