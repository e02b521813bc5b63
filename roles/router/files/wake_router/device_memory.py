"""Memory of devices: what launchers measured, against what the plan allows at the present depths. Pure.

Sizes in bytes, times in seconds of the router's monotonic clock. A GPU's use is what nvidia-smi says of the
whole GPU, whoever uses it. For CPU devices the resident memory of the engines on it plays its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from wake_router.admin_contract import DeviceMemory, MemoryShare, ServiceMemory
from wake_router.lifecycle import Depth
from wake_router.memory_plan import MemoryPlan, PlannedShare

MEASUREMENT_SCHEMA_VERSION: Final = 1
LARGEST_BYTES: Final = 2**60
LONGEST_SECONDS: Final = 1e6
LEAST_GAP_SECONDS: Final = 3.0
"""Between two measurements of one engine; a launcher gives an answer again for 2 s."""
STALE_INTERVALS: Final = 4
"""A measurement counts until so many should have followed it."""
TOLERANCE: Final = 0.02
"""What a device may hold beyond the plan, as a share of its memory: drivers round, and keep some for
themselves. The alert rule has the same figure."""

_ASLEEP: Final = frozenset({Depth.SLEEPING, Depth.OFFLOADED})


class MeasurementError(ValueError):
    """A launcher's answer is no measurement; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Used:
    """What is used of a GPU, and its size."""

    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one launcher measured at a moment. `resident` None: it couldn't; `problems` say why."""

    at: float
    resident: int | None = None
    gpus: Mapping[str, Used] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A service as it is now, and what was measured of it last; `since` is when it came to its depth.

    `failure` is why the last try gave nothing, as a sentence.
    """

    service: str
    devices: tuple[str, ...]
    depth: Depth
    since: float
    measured: Measurement | None = None
    failure: str | None = None

    @property
    def problems(self) -> list[str]:
        """Why something isn't known of it."""
        if self.failure is not None:
            return [self.failure]
        return list(self.measured.problems) if self.measured else []


def parse_measurement(document: Any, now: float) -> Measurement:
    """The answer of a launcher's /memory; raises MeasurementError."""
    try:
        if document["schema_version"] != MEASUREMENT_SCHEMA_VERSION:
            raise MeasurementError("it has another schema version")
        resident = document["resident_bytes"]
        return Measurement(
            at=now - _seconds(document["age_seconds"]),
            resident=None if resident is None else _size(resident),
            gpus={
                str(gpu)[:100]: Used(_size(each["used_bytes"]), _size(each["total_bytes"]))
                for gpu, each in document["devices"].items()
            },
            problems=tuple(str(problem)[:300] for problem in document["problems"][:10]),
        )
    except MeasurementError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MeasurementError(f"it has another form ({type(error).__name__}: {error})") from None


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= LONGEST_SECONDS:
        raise MeasurementError(f"{value!r} is no age in seconds")
    return float(value)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_BYTES:
        raise MeasurementError(f"{value!r} is no number of bytes")
    return value


def is_due(tried_at: float | None, member: Member, now: float, interval: float) -> bool:
    """Whether to measure: after the interval, and soon after the service came to another depth."""
    if not interval:
        return False
    if tried_at is None:
        return True
    waited = now - tried_at
    measured = member.measured is not None and member.measured.at >= member.since
    tried = tried_at >= member.since + LEAST_GAP_SECONDS  # later than any answer that is given again
    return waited >= interval or (waited >= LEAST_GAP_SECONDS and not measured and not tried)


def stale_seconds(interval: float) -> float:
    """How old a measurement may be and still count."""
    return STALE_INTERVALS * max(interval, LEAST_GAP_SECONDS)


def planned(share: PlannedShare, depth: Depth) -> int:
    """What the plan allows a service at a depth. One that starts or wakes may take its whole share."""
    if depth is Depth.STOPPED:
        return 0
    return share.asleep_bytes if depth in _ASLEEP else share.awake_bytes


# ------------------------------------------------------------------------------------------ views of it


def service_memory(member: Member, members: Sequence[Member], now: float) -> ServiceMemory | None:
    """What was measured of one service; None: nothing was tried yet."""
    measured = member.measured
    if measured is None:
        return _unmeasured(member.problems)
    alone = all(other is member or set(other.devices).isdisjoint(member.devices) for other in members)
    seen = [measured.gpus[device].used for device in member.devices if device in measured.gpus]
    return ServiceMemory(
        resident_bytes=measured.resident,
        device_bytes=sum(seen) if seen and alone and len(seen) == len(member.devices) else None,
        age_seconds=_age(measured.at, now),
        problems=member.problems,
    )


def _unmeasured(problems: list[str]) -> ServiceMemory | None:
    if not problems:
        return None
    return ServiceMemory(resident_bytes=None, device_bytes=None, age_seconds=None, problems=problems)


def device_memory(
    plan: MemoryPlan, members: Sequence[Member], now: float, fresh_seconds: float
) -> list[DeviceMemory]:
    """Every device of the plan and of the services, in this order."""
    names = [each.device for each in plan.devices]
    found = dict.fromkeys([*names, *(device for member in members for device in member.devices)])
    return [_device(device, plan, members, now, fresh_seconds) for device in found]


def _device(
    device: str, plan: MemoryPlan, members: Sequence[Member], now: float, fresh_seconds: float
) -> DeviceMemory:
    here = [member for member in members if device in member.devices]
    entry = next((each for each in plan.devices if each.device == device), None)
    kind = _kind(device) if entry is None else entry.kind
    fresh = {
        member.service: member.measured
        for member in here
        if member.measured is not None and now - member.measured.at <= fresh_seconds
    }
    use = _on_cpu(here, fresh) if kind == "cpu" else _on_gpu(device, fresh.values())
    shares = [_share(device, plan, member, fresh.get(member.service), kind) for member in here]
    allowed = [each.planned_bytes for each in shares]
    sum_planned = sum(each or 0 for each in allowed) if entry and None not in allowed else None
    total = entry.total_bytes if entry else use.total
    settled = all(use.at is not None and use.at >= member.since for member in here)
    known = None not in (sum_planned, use.used, total) and settled
    return DeviceMemory(
        device=device,
        name=entry.name if entry else device,
        kind=kind,
        total_bytes=total,
        limit_bytes=entry.limit_bytes if entry else None,
        planned_bytes=sum_planned,
        used_bytes=use.used,
        age_seconds=None if use.at is None else _age(use.at, now),
        over_plan=is_over(use.used or 0, sum_planned or 0, total or 0) if known else None,
        shares=shares,
        problems=[] if use.used is not None else _problems(here),
    )


def is_over(used: int, allowed: int, total: int) -> bool:
    """Whether more is used than the plan allows, beyond the tolerance."""
    return used > allowed + TOLERANCE * total


def _kind(device: str) -> Literal["cuda", "cpu"]:
    return "cuda" if device.startswith("GPU-") else "cpu"


@dataclass(frozen=True, slots=True)
class _Use:
    used: int | None = None
    at: float | None = None
    total: int | None = None


def _on_gpu(device: str, fresh: Iterable[Measurement]) -> _Use:
    """The newest word on a GPU, by whichever launcher."""
    seen = [each for each in fresh if device in each.gpus]
    if not seen:
        return _Use()
    newest = max(seen, key=lambda each: each.at)
    return _Use(newest.gpus[device].used, newest.at, newest.gpus[device].total)


def _on_cpu(here: Sequence[Member], fresh: Mapping[str, Measurement]) -> _Use:
    """The sum over all engines: unknown as long as one of them is there and wasn't measured. What has ended
    holds nothing.
    """
    used, moments = 0, []
    for member in here:
        measured = fresh.get(member.service)
        if member.depth is Depth.STOPPED and (measured is None or measured.at < member.since):
            continue
        if measured is None or measured.resident is None:
            return _Use()
        used += _part(measured.resident, member)
        moments.append(measured.at)
    return _Use(used, min(moments)) if moments else _Use()


def _part(resident: int, member: Member) -> int:
    """An engine on several CPU devices is the host's all the same; each device has an equal part."""
    return resident // len(set(member.devices))


def _share(
    device: str, plan: MemoryPlan, member: Member, fresh: Measurement | None, kind: Literal["cuda", "cpu"]
) -> MemoryShare:
    entry = next(
        (each for each in plan.shares if (each.service, each.device) == (member.service, device)), None
    )
    resident = fresh.resident if fresh is not None and kind == "cpu" else None
    return MemoryShare(
        service=member.service,
        depth=member.depth,
        planned_bytes=planned(entry, member.depth) if entry else None,
        awake_bytes=entry.awake_bytes if entry else None,
        asleep_bytes=entry.asleep_bytes if entry else None,
        asleep_is_measured=entry is not None and entry.measured,
        resident_bytes=None if resident is None else _part(resident, member),
    )


def _problems(here: Sequence[Member]) -> list[str]:
    return list(dict.fromkeys(problem for member in here for problem in member.problems))


def _age(at: float, now: float) -> float:
    return round(max(0.0, now - at), 1)
