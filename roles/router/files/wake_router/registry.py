"""The registry: which services there are. A deployment writes it; this module owns its schema.

`python3 -m wake_router schema` prints it as JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Url = Annotated[str, Field(pattern=r"^http://[^/?#\s@]+$", description="http://address:port, without a path")]


class RegistryError(ValueError):
    """The registry can't be used; the message says what is wrong where."""


class Service(BaseModel):
    """One engine as the router needs to know it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name = Field(description="the service's key; clients may use it as a model name")
    model: ModelName = Field(
        description="what the engine serves (--served-model-name); what the router sends"
    )
    aliases: tuple[ModelName, ...] = Field(default=(), strict=False, description="further names for clients")
    task: Literal["generate", "embed", "rerank"] = Field(
        default="generate", description="what it can be asked for"
    )
    base_url: Url = Field(description="the engine")
    launcher_url: Url | None = Field(default=None, description="the launcher beside it; null: there is none")
    devices: tuple[str, ...] = Field(
        strict=False,
        min_length=1,
        description="keys of the devices that it runs on: cpu:<name> or GPU-<uuid>",
    )
    definition: str = Field(default="", description="sha256 of the engine's rendered definition, hexadecimal")
    idle_sleep_seconds: float | None = Field(
        default=None, ge=0, description="idle time until level 1; 0: never; null: IDLE_SLEEP_MIN"
    )
    idle_offload_seconds: float | None = Field(
        default=None, ge=0, description="idle time until level 2; 0: never; null: IDLE_OFFLOAD_MIN"
    )
    pin: bool = Field(default=False, description="true: never put to sleep by a timer")
    allow_level_2: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="auto: once proven by a round trip on this very engine; always: trusted; never",
    )
    may_record_canary: bool = Field(
        default=False,
        description="true: the evidence about its weights and devices is good enough for its answers after a "
        "cold start to be recorded as the expected ones",
    )

    def names(self) -> Iterator[str]:
        """Every name that clients may use, folded for comparison."""
        yield self.name.casefold()
        yield self.model.casefold()
        for alias in self.aliases:
            yield alias.casefold()


class Registry(BaseModel):
    """All services of one instance."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1]
    instance: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
    services: tuple[Service, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _names_are_unambiguous(self) -> Registry:
        owner: dict[str, str] = {}
        for service in self.services:
            for name in set(service.names()):
                other = owner.setdefault(name, service.name)
                if other != service.name:
                    raise ValueError(f"the name '{name}' belongs to both '{other}' and '{service.name}'")
        keys = [service.name for service in self.services]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"there are two services called '{key}'")
        return self

    def by_name(self) -> dict[str, Service]:
        """Services by every name that clients may use, folded with str.casefold."""
        return {name: service for service in self.services for name in service.names()}


def parse_registry(document: bytes) -> Registry:
    """Read a registry from the bytes of its file; raises RegistryError."""
    try:
        return Registry.model_validate(json.loads(document))
    except ValidationError as error:
        raise RegistryError("; ".join(_sentences(error))) from None
    except ValueError as error:
        raise RegistryError(f"it is not JSON: {error}") from None


def read_registry(path: Path) -> Registry:
    """Read the registry's file; raises RegistryError."""
    try:
        document = path.read_bytes()
    except OSError as error:
        raise RegistryError(f"The registry {path} can't be read: {error.strerror}. Deploy first.") from None
    try:
        return parse_registry(document)
    except RegistryError as error:
        raise RegistryError(
            f"The registry {path} can't be used: {error}. Deploy again to rewrite it."
        ) from None


def _sentences(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"]) or "the document"
        yield f"{place}: {problem['msg']}"


def schema() -> dict[str, Any]:
    """The registry's JSON Schema."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Registry.model_json_schema()}
