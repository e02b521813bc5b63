"""What the router tells of engines that can't be trusted any more, as suspicion of their GPUs.

The router runs without a way to write evidence, so it only tells: in its stream of events while the watcher
listens, and in its status of what happened before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from gpu_diag.evidence import EvidenceError
from gpu_diag.hostfacts.gpu_diag_router import Admin, Json, NoAnswerError, RouterError, Service
from gpu_diag.suspicion import Suspicion, from_engine

_RETRY_SECONDS = 5.0
# What the router says of a service that it doesn't trust (wake_router.lifecycle).
_CONDITIONS = frozenset({"quarantined", "failed"})
# Words in its reason, by what the engine did (wake_router.guardian and wake_router.canary).
_WORDS = {"nan": ("NaN", "vllm:corrupted_requests"), "canary": ("canary",)}

Leave = Callable[[Suspicion, datetime], object]


def kind_of(conditions: Iterable[str], reason: str) -> str | None:
    """``nan`` or ``canary`` where the router distrusts an engine for that, else None."""
    if not _CONDITIONS.intersection(conditions):
        return None
    return next((kind for kind, words in _WORDS.items() if any(word in reason for word in words)), None)


def from_router_event(event: Json) -> tuple[str, str, datetime] | None:
    """The service, the kind and the moment of an event that makes GPUs suspect. Pure."""
    conditions = event.get("conditions")
    if event.get("event") != "depth" or not isinstance(conditions, list):
        return None
    kind = kind_of(map(str, conditions), str(event.get("reason")))
    try:
        moment = datetime.fromisoformat(str(event.get("time")))
    except ValueError:
        moment = datetime.now(UTC)
    return (str(event.get("service")), kind, moment) if kind else None


def suspicions(service: Service, kind: str, moment: datetime, slots: Mapping[str, str]) -> list[Suspicion]:
    """Suspicion of all GPUs of a service; ``slots`` are PCI addresses by UUID. Pure."""
    addresses = [slots[device] for device in service.devices if device in slots]
    return from_engine(addresses, kind, f"{moment.timestamp():.0f}")


def look_once(admin: Admin, slots: Mapping[str, str], leave: Leave) -> None:
    """Mark what the router distrusts now. Raises RouterError."""
    now = datetime.now(UTC)
    for service in admin.status().services:
        kind = kind_of(service.conditions, service.reason)
        if kind is not None:
            moment = now - timedelta(seconds=service.since_seconds)
            for found in suspicions(service, kind, moment, slots):
                leave(found, moment)


def follow(admin: Admin, slots: Callable[[], Mapping[str, str]], leave: Leave) -> None:
    """Mark what the router tells, for ever; where it is not there, wait for it."""
    while True:
        try:
            stream = admin.events()
            look_once(admin, slots(), leave)
            for event in stream:
                _mark(admin, event, slots, leave)
        except RouterError:
            pass  # it is being deployed, or stopped: there is nothing to hear until it is back
        except EvidenceError as error:
            sys.stderr.write(f"{error}\n")
        time.sleep(_RETRY_SECONDS)


def _mark(admin: Admin, event: Json, slots: Callable[[], Mapping[str, str]], leave: Leave) -> None:
    told = from_router_event(event)
    if told is None:
        return
    name, kind, moment = told
    known = {service.name: service for service in admin.status().services}
    if name not in known:
        raise NoAnswerError(f"the router tells of a service {name} that it doesn't have")
    for found in suspicions(known[name], kind, moment, slots()):
        leave(found, moment)
