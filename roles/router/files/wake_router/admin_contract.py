"""The shapes of the admin surface's answers, versioned."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from wake_router.lifecycle import Condition, Depth


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


class Status(BaseModel):
    """Answer of `GET /admin/status`."""

    schema_version: Literal[1] = 1
    instance: str
    services: list[ServiceStatus]
    cordoned: list[str]


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
