"""The shapes of the admin surface's answers, versioned."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from wake_router.lifecycle import Condition, Depth


class ServiceMemory(BaseModel):
    """What a service holds, as its launcher measured it `age_seconds` ago; in bytes, None: not known.

    `resident_bytes` is in the host's memory. `device_bytes` is what is used of its GPUs, where it is the only
    service on them: nvidia-smi doesn't tell processes of a container apart.
    """

    resident_bytes: int | None
    device_bytes: int | None
    age_seconds: float | None
    problems: list[str]


class MemoryShare(BaseModel):
    """What the plan allows a service of one device, in bytes: at its present depth, awake, and asleep.

    None: the plan's figures aren't there. `resident_bytes` is what it holds of a CPU device: its resident
    memory, or its part of it where it is on several; None on GPUs, and where it isn't measured.
    """

    service: str
    depth: Depth
    planned_bytes: int | None
    awake_bytes: int | None
    asleep_bytes: int | None
    asleep_is_measured: bool
    resident_bytes: int | None


class DeviceMemory(BaseModel):
    """One device's memory in bytes; None: not known. `problems` say why nothing was measured.

    With the kind `cpu`, resident memory plays a GPU's part: the total and the limit are the host's, which
    all CPU devices share. `planned_bytes` is what the plan allows at the present depths of its services,
    `over_plan` whether more than that is used, which is known once it was measured at these depths.
    """

    device: str
    name: str
    kind: Literal["cuda", "cpu"]
    total_bytes: int | None
    limit_bytes: int | None
    planned_bytes: int | None
    used_bytes: int | None
    age_seconds: float | None
    over_plan: bool | None
    shares: list[MemoryShare]
    problems: list[str]


class ServiceStatus(BaseModel):
    """One service as operators see it. Durations in seconds."""

    name: str
    model: str
    aliases: list[str]
    task: str
    depth: Depth
    conditions: list[Condition]
    since_seconds: float
    in_flight: int
    held: int
    idle_seconds: float
    devices: list[str]
    incarnation: str | None
    last_wake_seconds: float | None
    pinned: bool
    restartable: bool
    retry_in_seconds: float | None
    reason: str
    memory: ServiceMemory | None = None


class Status(BaseModel):
    """Answer of `GET /admin/status`."""

    schema_version: Literal[1] = 1
    instance: str
    services: list[ServiceStatus]
    cordoned: list[str]
    device_memory: list[DeviceMemory] = []


class Explanation(BaseModel):
    """Answer of `GET /admin/services/{name}/why`: sentences."""

    service: str
    depth: Depth
    why: list[str]


class ProofDone(BaseModel):
    """Answer of a prove: what was done with the canary, and whether level 2 is trusted, in words."""

    service: str
    depth: Depth
    canary: str
    level_2: str


class ParkedDone(BaseModel):
    """Answer of a drain or maintenance."""

    service: str
    depth: Depth
    conditions: list[Condition]
    in_flight: int
    held: int


class RestartDone(ProofDone):
    """Answer of a restart: the new process, and what its canary said, in words."""

    pinned: bool
    incarnation: str | None


class DeviceDone(BaseModel):
    """Answer of a cordon or uncordon."""

    device: str
    cordoned: bool


class OrderDone(BaseModel):
    """Answer of a wake, sleep, offload, pin or unpin."""

    service: str
    depth: Depth
    pinned: bool


class Reloaded(BaseModel):
    """Answer of `POST /admin/reload`."""

    instance: str
    changes: list[str]


class ErrorMessage(BaseModel):
    """What went wrong, as a sentence."""

    message: str


class AdminError(BaseModel):
    """Every answer that isn't 2xx."""

    error: ErrorMessage
