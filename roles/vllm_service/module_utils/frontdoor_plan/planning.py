"""Where desired and discovered state meet: a plan, or every reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .declaration import Declaration
from .devices import device_kind, devices_of, known_devices
from .model import Desired, Device, Discovered, Placement, Plan, Refusal, WeightEvidence
from .rules import devices, flags, host, memory, names, parallelism, weights
from .waves import waves


def check_declaration(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that can be told before anything is changed, without Docker and without images."""
    return _in_order(
        [
            *host.check_before_anything(desired, discovered),
            *names.check(desired),
            *devices.check(desired, discovered),
            *parallelism.check(desired),
            *memory.check(desired, discovered),
            *flags.check(desired),
            *weights.check_folders(desired, discovered),
        ]
    )


def plan(
    desired: Desired, discovered: Discovered, evidence: Mapping[str, WeightEvidence]
) -> Plan | list[Refusal]:
    """The plan, or all refusals at once. A function of its arguments alone.

    `evidence` holds the newest verdict on weights by model folder.
    """
    refusals = [
        *check_declaration(desired, discovered),
        *host.check_installed(desired, discovered),
        *weights.check(desired, discovered, evidence),
    ]
    return _in_order(refusals) if refusals else _planned(desired, discovered)


def plan_declaration(
    declaration: Declaration, discovered: Discovered, evidence: Mapping[str, WeightEvidence]
) -> Plan | list[Refusal]:
    """The plan of what people wrote, or all refusals: those of reading it and those of the rules."""
    found = plan(declaration.desired, discovered, evidence)
    refusals = merged(declaration, found if isinstance(found, list) else [])
    return refusals if refusals or isinstance(found, list) else found


def merged(declaration: Declaration, refusals: Iterable[Refusal]) -> list[Refusal]:
    """All refusals. Of a place that could not be read, rules have nothing to add."""
    unread = {refusal.where for refusal in declaration.refusals}
    return _in_order(
        [*declaration.refusals, *(refusal for refusal in refusals if refusal.where not in unread)]
    )


def _in_order(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Each refusal once, by the place where it is set."""
    return sorted(set(refusals))


def _planned(desired: Desired, discovered: Discovered) -> Plan:
    kind = device_kind(desired, discovered)
    engine_image = discovered.images[desired.image]
    router_image = discovered.images[desired.router.image]
    if kind is None or engine_image is None or router_image is None:
        raise AssertionError("the rules let a plan pass without its images")
    known = known_devices(desired, discovered, kind)
    placements = tuple(
        Placement(
            service=service,
            devices=devices_of(service, known),
            idle_sleep_minutes=_first(service.idle_sleep_minutes, desired.router.idle_sleep_minutes),
            idle_offload_minutes=_first(service.idle_offload_minutes, desired.router.idle_offload_minutes),
        )
        for service in sorted(desired.services, key=lambda service: service.slot)
    )
    return Plan(
        instance=desired.instance,
        kind=kind,
        engine_image=engine_image,
        router_image=router_image,
        router=desired.router,
        environment=desired.environment,
        memory_limit=desired.memory_limit,
        cpu_kv_cache_gib=desired.cpu_kv_cache_gib,
        devices=_distinct(known.values()),
        placements=placements,
        waves=waves(placements),
    )


def _first(own: int | None, general: int) -> int:
    return general if own is None else own


def _distinct(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Each device once; of several names the one that people gave, which comes last."""
    by_key = {device.key: device for device in devices}
    return tuple(sorted(by_key.values(), key=lambda device: device.name))
