"""Where desired and discovered state meet: a plan, or every reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .declaration import Declaration
from .devices import device_kind, devices_of, known_devices
from .evidence import Evidence
from .model import Desired, Device, Discovered, Placement, Plan, Refusal, Service
from .rules import devices, flags, gate, host, memory, models, names, parallelism, weights
from .trust import Trust, trust
from .waves import waves

_NO_EVIDENCE = Evidence()


def check_declaration(
    desired: Desired, discovered: Discovered, evidence: Evidence = _NO_EVIDENCE
) -> list[Refusal]:
    """Every refusal that can be told before anything is changed, without Docker and without images."""
    return _in_order(
        [
            *host.check_before_anything(desired, discovered),
            *names.check(desired),
            *devices.check(desired, discovered),
            *parallelism.check(desired, discovered),
            *models.check(desired, discovered),
            *memory.check(desired, discovered, evidence),
            *flags.check(desired, discovered),
            *weights.check_folders(desired, discovered),
        ]
    )


def plan(desired: Desired, discovered: Discovered, evidence: Evidence) -> Plan | list[Refusal]:
    """The plan, or all refusals at once. A function of its arguments alone."""
    refusals = [
        *check_declaration(desired, discovered, evidence),
        *host.check_installed(desired, discovered),
        *weights.check(desired, discovered, evidence.weights),
        *gate.check(desired, discovered, evidence),
    ]
    return _in_order(refusals) if refusals else _planned(desired, discovered, evidence)


def plan_declaration(
    declaration: Declaration, discovered: Discovered, evidence: Evidence
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


def _planned(desired: Desired, discovered: Discovered, evidence: Evidence) -> Plan:
    kind = device_kind(desired, discovered)
    engine_image = discovered.images[desired.image]
    router_image = discovered.images[desired.router.image]
    if kind is None or engine_image is None or router_image is None:
        raise AssertionError("the rules let a plan pass without its images")
    known = known_devices(desired, discovered, kind)
    services = sorted(desired.services, key=lambda service: service.slot)
    paths = {service.name: _trust(service, known, desired, discovered, evidence) for service in services}
    placements = tuple(
        _placement(service, known, paths[service.name], desired, discovered, evidence) for service in services
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
        host_memory_bytes=discovered.memory_bytes,
        host_memory_limit=desired.host_memory_limit,
        warnings=tuple(_warnings(paths)),
    )


def _trust(
    service: Service,
    known: dict[str, Device],
    desired: Desired,
    discovered: Discovered,
    evidence: Evidence,
) -> Trust:
    found = devices_of(service, known)
    wants_staged = "NCCL_P2P_DISABLE" in service.environment
    addresses = gate.addresses_of(found, discovered)
    return trust(found, evidence, addresses, allowed=desired.allow_p2p and not wants_staged)


def _placement(
    service: Service,
    known: dict[str, Device],
    path: Trust,
    desired: Desired,
    discovered: Discovered,
    evidence: Evidence,
) -> Placement:
    found = devices_of(service, known)
    return Placement(
        service=service,
        devices=found,
        idle_sleep_minutes=_first(service.idle_sleep_minutes, desired.router.idle_sleep_minutes),
        idle_offload_minutes=_first(service.idle_offload_minutes, desired.router.idle_offload_minutes),
        memory=memory.service_memory(service, found, desired, discovered, evidence),
        path=path.path,
        boot_id=path.boot_id,
        vouched_for=weights.vouched_for(service, evidence.weights),
    )


def _warnings(paths: dict[str, Trust]) -> Iterator[str]:
    """What people asked for and don't get, and what is missing for it."""
    for name, path in paths.items():
        if path.missing:
            yield (
                f"{name} stays on the staged path although gpu_diag_allow_p2p asks for the peer path: "
                f"{'; '.join(path.missing[:6])}."
            )


def _first(own: int | None, general: int) -> int:
    return general if own is None else own


def _distinct(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Each device once; of several names the one that people gave, which comes last."""
    by_key = {device.key: device for device in devices}
    return tuple(sorted(by_key.values(), key=lambda device: device.name))
