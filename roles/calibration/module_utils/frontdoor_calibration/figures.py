"""What was measured, and the figures that follow from it. Pure.

Sizes are bytes, times seconds. A round takes a service from a new process through level 1 and level 2 and
back; what it couldn't measure is absent from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SCHEMA_VERSION = 1
LARGEST_BYTES = 2**50
"""The plan reads no larger size."""

STEPS = ("start", "sleep", "wake", "offload", "wake_from_offloaded")
"""In the order of a round: a new process until its canary is asked; to level 1 and back; to level 2 and
back."""
DEPTHS = ("awake", "sleeping", "offloaded")


class MeasurementError(ValueError):
    """A document is no measurement of this version; the message is a sentence."""


@dataclass(frozen=True)
class Reading:
    """Memory at one moment. `host` is what the engine's processes hold, `devices` what they hold of each GPU
    by UUID (empty on CPU devices), `available` what the whole host has left."""

    host: int
    available: int
    devices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """Times by step and readings by depth."""

    seconds: Mapping[str, float]
    memory: Mapping[str, Reading]


@dataclass(frozen=True)
class Measurement:
    """All rounds of one service. `level_2` is the router's verdict in words, `notes` what wasn't measured and
    why."""

    service: str
    model: str
    measured_at: str
    on_cpu: bool
    rounds: tuple[Round, ...]
    level_2: str
    canary: str
    kv_cache_bytes: int = 0
    """On CPU devices, the size that the KV cache may grow to."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """The median of several values, the least and the largest."""

    median: float
    least: float
    largest: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of values; None for none."""
    found = sorted(values)
    return Spread(median(found), found[0], found[-1], len(found)) if found else None


def times(measured: Measurement, step: str) -> list[float]:
    """How long a step took in each round that has it."""
    return [each.seconds[step] for each in measured.rounds if step in each.seconds]


def host_sizes(measured: Measurement, depth: str) -> list[int]:
    """What the host's memory held at a depth, in each round that has it."""
    return [each.memory[depth].host for each in measured.rounds if depth in each.memory]


def device_sizes(measured: Measurement, depth: str) -> list[int]:
    """What the fullest of the GPUs held at a depth, in each round that has it."""
    readings = [each.memory[depth] for each in measured.rounds if depth in each.memory]
    return [max(reading.devices.values()) for reading in readings if reading.devices]


def plan_figures(measured: Measurement) -> dict[str, int]:
    """The three sizes that the plan reads, each so that it errs on the safe side.

    Of rounds that differ the largest counts. On CPU devices the engine is in the host's memory at every
    depth, and pages of its KV cache that no request has touched aren't resident yet: the whole cache is
    added. On GPUs pinned memory may be missing from the processes' own account, so what the host as a whole
    lost between awake and asleep counts if it is more; of that the median, since others use the host too.
    """
    everywhere = [size for depth in DEPTHS for size in host_sizes(measured, depth)]
    if measured.on_cpu:
        host = max(everywhere) + measured.kv_cache_bytes
    else:
        host = max(max(host_sizes(measured, "sleeping")), int(median(map(_with_growth, _slept(measured)))))
    return {
        "awake_bytes_per_device": max(device_sizes(measured, "awake"), default=0),
        "asleep_bytes_per_device": max(device_sizes(measured, "sleeping"), default=0),
        "host_bytes_asleep": min(host, LARGEST_BYTES),
    }


def _slept(measured: Measurement) -> list[tuple[Reading, Reading]]:
    return [
        (each.memory["awake"], each.memory["sleeping"])
        for each in measured.rounds
        if {"awake", "sleeping"} <= set(each.memory)
    ]


def _with_growth(pair: tuple[Reading, Reading]) -> int:
    awake, asleep = pair
    return awake.host + max(0, awake.available - asleep.available)


# ---------------------------------------------------------------------------------------------- on the disk


def to_document(measured: Measurement) -> dict[str, Any]:
    """The JSON document that keeps a measurement for the page."""
    return {
        "schema_version": SCHEMA_VERSION,
        "service": measured.service,
        "model": measured.model,
        "measured_at": measured.measured_at,
        "on_cpu": measured.on_cpu,
        "kv_cache_bytes": measured.kv_cache_bytes,
        "level_2": measured.level_2,
        "canary": measured.canary,
        "notes": list(measured.notes),
        "rounds": [
            {
                "seconds": dict(each.seconds),
                "memory": {
                    depth: {"host": one.host, "available": one.available, "devices": dict(one.devices)}
                    for depth, one in each.memory.items()
                },
            }
            for each in measured.rounds
        ],
    }


def from_document(document: Any) -> Measurement:
    """The measurement in a document. Raises MeasurementError."""
    try:
        if document["schema_version"] != SCHEMA_VERSION:
            raise MeasurementError(f"it has not the schema version {SCHEMA_VERSION}")
        return Measurement(
            service=str(document["service"]),
            model=str(document["model"]),
            measured_at=str(document["measured_at"]),
            on_cpu=bool(document["on_cpu"]),
            rounds=tuple(_round(each) for each in document["rounds"]),
            level_2=str(document["level_2"]),
            canary=str(document["canary"]),
            kv_cache_bytes=int(document["kv_cache_bytes"]),
            notes=tuple(map(str, document["notes"])),
        )
    except MeasurementError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MeasurementError(f"it has another form ({type(error).__name__}: {error})") from None


def _round(document: Mapping[str, Any]) -> Round:
    return Round(
        seconds={str(step): float(value) for step, value in document["seconds"].items()},
        memory={str(depth): _reading(one) for depth, one in document["memory"].items()},
    )


def _reading(document: Mapping[str, Any]) -> Reading:
    devices: Mapping[str, Any] = document["devices"]
    return Reading(
        host=int(document["host"]),
        available=int(document["available"]),
        devices={str(uuid): int(size) for uuid, size in devices.items()},
    )


def newest(known: Sequence[Measurement], measured: Sequence[Measurement]) -> list[Measurement]:
    """One measurement by service, the later of two, sorted by name."""
    return [each for _, each in sorted({one.service: one for one in (*known, *measured)}.items())]
