"""Which service somebody means. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from vllmctl.errors import CommandError

Json = dict[str, Any]


def names_of(service: Json) -> list[str]:
    """Everything that a service is called: its name, its aliases, its model."""
    return [str(service["name"]), *map(str, service.get("aliases", [])), str(service["model"])]


def with_device_names(status: Json) -> Json:
    """The router's status with devices as people call them, where the deployment has said so."""
    names = {each["device"]: each["name"] for each in status.get("device_memory", [])}
    named = [
        {**service, "devices": [names.get(key, key) for key in service["devices"]]}
        for service in status["services"]
    ]
    return {
        **status,
        "services": named,
        "cordoned": [names.get(key, key) for key in status.get("cordoned", [])],
    }


def resolve(services: Sequence[Json], wanted: str) -> Json:
    """The service of that name, alias or model, in any case; raises CommandError with the nearest one."""
    known = {name.casefold(): service for service in services for name in reversed(names_of(service))}
    if wanted.casefold() in known:
        return known[wanted.casefold()]
    spelled = {name.casefold(): name for service in services for name in names_of(service)}
    near = difflib.get_close_matches(wanted.casefold(), spelled, n=1, cutoff=0.5)
    if near:
        raise CommandError(f"There is no service '{wanted}'; did you mean '{spelled[near[0]]}'?")
    listed = ", ".join(str(service["name"]) for service in services) or "none"
    raise CommandError(f"There is no service '{wanted}'; there are: {listed}.")
