"""What the plan allows each service of each device. A deployment writes it beside the registry; this module
owns its schema (`python3 -m wake_router schema device-memory` prints it).

It is only compared with what is used. Without it, or with a damaged one, the router does all else as ever: so
it lies in a file of its own, which a router of an earlier release doesn't read, and fields that this one
doesn't know are left out. Sizes in bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE_NAME: Final = "device-memory.json"
"""In the registry's folder."""

Size = Annotated[int, Field(ge=0, le=2**60)]


class MemoryPlanError(ValueError):
    """The plan's figures can't be used; the message is a sentence."""


class PlannedDevice(BaseModel):
    """A device: its memory, and how much of it the plan gives away at most."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    device: str = Field(min_length=1, description="key of the device: cpu:<name> or GPU-<uuid>")
    name: str = Field(description="what people call it")
    kind: Literal["cuda", "cpu"] = Field(description="cpu: the memory is the host's, for all CPU devices")
    total_bytes: Size
    limit_bytes: Size


class PlannedShare(BaseModel):
    """What a service may hold of one device."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    service: str
    device: str
    awake_bytes: Size
    asleep_bytes: Size = Field(description="at level 1 and level 2; on CPU devices the same as awake")
    measured: bool = Field(description="false: what it holds asleep is estimated")


class MemoryPlan(BaseModel):
    """All devices of one instance, and who may hold how much of them."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    schema_version: Literal[1]
    devices: tuple[PlannedDevice, ...] = Field(strict=False)
    shares: tuple[PlannedShare, ...] = Field(strict=False)


NO_PLAN: Final = MemoryPlan(schema_version=1, devices=(), shares=())


def parse_memory_plan(document: bytes) -> MemoryPlan:
    """Read the bytes of the file; raises MemoryPlanError."""
    try:
        return MemoryPlan.model_validate(json.loads(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise MemoryPlanError(f"{place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise MemoryPlanError(f"it is not JSON: {error}") from None


def read_memory_plan(registry: Path) -> MemoryPlan:
    """The figures beside a registry; none where there is no such file. Raises MemoryPlanError."""
    path = registry.with_name(FILE_NAME)
    try:
        return parse_memory_plan(path.read_bytes())
    except FileNotFoundError:
        return NO_PLAN
    except OSError as error:
        raise MemoryPlanError(f"The plan's figures {path} can't be read: {error.strerror}.") from None
    except MemoryPlanError as error:
        raise MemoryPlanError(
            f"The plan's figures {path} can't be used: {error}. Deploy again to rewrite them."
        ) from None


def schema() -> dict[str, Any]:
    """The JSON Schema."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **MemoryPlan.model_json_schema()}
