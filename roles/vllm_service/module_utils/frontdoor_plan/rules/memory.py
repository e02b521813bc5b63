"""Memory: what may be awake together on one GPU has to fit, and the host holds what sleeps.

A fraction is of the GPU's *total* memory and per engine, and it contains that engine's own context; vLLM
wants as much *free* when it starts (vLLM 0.27.1). Fractions are exact decimals: a hair over is over. Asleep,
an engine leaves a residue on its GPU; where that is more than its fraction, the residue counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import ROUND_UP, Decimal

from ..devices import device_kind, devices_of, known_devices
from ..evidence import Evidence
from ..model import Desired, Device, Discovered, Memory, Refusal, Service
from ..sizes import applies, claim, memory_of

_GIB = Decimal(2**30)


def gib(count: int) -> Decimal:
    """Bytes as GiB."""
    return Decimal(count) / _GIB


def plain(number: Decimal) -> str:
    """A decimal without an exponent."""
    return format(number, "f")


Placed = tuple[Service, tuple[Device, ...], Memory]


def check(desired: Desired, discovered: Discovered, evidence: Evidence) -> list[Refusal]:
    """Every refusal that memory gives; devices that nobody knows are another rule's matter."""
    known = known_devices(desired, discovered, device_kind(desired, discovered))
    placed = [
        (service, devices, memory)
        for service in desired.services
        for devices in [devices_of(service, known)]
        for memory in [service_memory(service, devices, desired, discovered, evidence)]
    ]
    return [
        *_damaged(evidence, desired),
        *(refusal for service, devices, _ in placed for refusal in _of_service(service, devices)),
        *_sums(desired, placed),
        *_host(desired, discovered, placed),
    ]


def service_memory(
    service: Service,
    devices: tuple[Device, ...],
    desired: Desired,
    discovered: Discovered,
    evidence: Evidence,
) -> Memory:
    """What a service takes, from figures that were measured on this very engine, or else estimated."""
    image = discovered.images.get(desired.image)
    measured = evidence.calibration.get(service.name)
    if measured is not None and not applies(measured, service, devices, "" if image is None else image.id):
        measured = None
    return memory_of(service, devices, discovered, measured, desired.cpu_kv_cache_gib)


def _damaged(evidence: Evidence, desired: Desired) -> Iterator[Refusal]:
    for path, why in evidence.calibration_problems:
        yield Refusal(
            where="vllm_service_services",
            what=f"The measured figures in {path} can't be used: {why}.",
            why="They may be larger than the estimate that would stand in for them.",
            remedy=f"Remove the file (rm {path}); the estimate holds until the service is measured again.",
        )


def _of_service(service: Service, devices: tuple[Device, ...]) -> Iterator[Refusal]:
    kinds = {device.kind for device in devices}
    if kinds == {"cuda"} and service.memory_fraction is None and service.kv_cache_memory_gib is None:
        yield Refusal(
            where=f"{service.where}.memory_fraction",
            what=f"{service.name} says neither memory_fraction nor kv_cache_memory_gib.",
            why="vLLM would take 0.9 of the GPU, whoever else is there.",
            remedy="Set memory_fraction: the share of the GPU's whole memory, such as 0.45; or "
            "kv_cache_memory_gib, and the fraction follows from it and the weights.",
        )
    if kinds == {"cpu"} and service.memory_fraction is not None:
        yield Refusal(
            where=f"{service.where}.memory_fraction",
            what=f"{service.name} runs on a CPU device and sets memory_fraction.",
            why="It is a share of a GPU's memory and means nothing here.",
            remedy="Remove it; kv_cache_memory_gib sets the size of the KV cache.",
        )
    cache = service.kv_cache_memory_gib
    if kinds == {"cpu"} and cache is not None and cache != cache.to_integral_value():
        yield Refusal(
            where=f"{service.where}.kv_cache_memory_gib",
            what=f"{service.name} wants a KV cache of {cache} GiB on a CPU device.",
            why="vLLM reads whole GiB there (VLLM_CPU_KVCACHE_SPACE is an integer).",
            remedy="Write a whole number of GiB.",
        )
    if kinds == {"cuda"} and cache is not None and service.memory_fraction is not None:
        yield from _cache_within_fraction(service, devices, cache, service.memory_fraction)


def _cache_within_fraction(
    service: Service, devices: tuple[Device, ...], cache: Decimal, fraction: Decimal
) -> Iterator[Refusal]:
    smallest = min(gib(device.memory_bytes or 0) for device in devices)
    if cache >= smallest * fraction:
        yield Refusal(
            where=f"{service.where}.kv_cache_memory_gib",
            what=f"{service.name} wants a KV cache of {cache} GiB within {smallest * fraction:.2f} GiB.",
            why=f"memory_fraction {fraction} of {smallest:.2f} GiB has to hold weights and context as well.",
            remedy="Make kv_cache_memory_gib smaller, or memory_fraction larger.",
        )


def _sums(desired: Desired, placed: list[Placed]) -> Iterator[Refusal]:
    users: dict[str, list[tuple[Service, Decimal, Decimal]]] = defaultdict(list)
    devices: dict[str, Device] = {}
    for service, found, memory in placed:
        fraction = memory.fraction or Decimal(0)
        for device in {device.key: device for device in found if device.kind == "cuda"}.values():
            users[device.key].append((service, fraction, claim(fraction, memory.residue, device)))
            devices.setdefault(device.key, device)
    for key, claims in sorted(users.items()):
        total = sum((claimed for _, _, claimed in claims), Decimal(0))
        if total > desired.memory_limit:
            yield _over_limit(devices[key], claims, total, desired.memory_limit)


def _over_limit(
    device: Device, claims: list[tuple[Service, Decimal, Decimal]], total: Decimal, limit: Decimal
) -> Refusal:
    parts = " + ".join(
        f"{share(claimed)} ({service.name}{', its residue' if claimed > fraction else ''})"
        for service, fraction, claimed in claims
    )
    memory = gib(device.memory_bytes or 0)
    several = len(claims) > 1
    awake = "They may be awake together" if several else "It may be awake with all of it"
    move = ", or move a service to another GPU" if several else ""
    excess = ((total - limit) * memory).quantize(Decimal("0.01"), rounding=ROUND_UP)
    return Refusal(
        where=" and ".join(_fraction_setting(service) for service, _, _ in claims),
        what=f"{device.name} is over its memory limit: {parts} = {share(total)}, the limit is "
        f"{plain(limit)}.",
        why=f"{awake}, and {share(total)} of {memory:.2f} GiB is "
        f"{total * memory:.2f} GiB; the rest is needed for peaks.",
        remedy=f"Take at least {share(total - limit)} off ({excess} GiB){move}; "
        "vllm_service_memory_limit sets the limit.",
    )


def share(number: Decimal) -> str:
    """A share of a GPU as it was written; one that was derived, rounded up to six digits."""
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -15:
        number = number.quantize(Decimal("0.000001"), rounding=ROUND_UP)
    return plain(number)


def _fraction_setting(service: Service) -> str:
    derived = service.memory_fraction is None and service.kv_cache_memory_gib is not None
    return f"{service.where}.{'kv_cache_memory_gib' if derived else 'memory_fraction'}"


def _host(desired: Desired, discovered: Discovered, placed: list[Placed]) -> Iterator[Refusal]:
    """The host's memory holds every service that sleeps at level 1; on CPU devices it holds the engines."""
    total = sum(memory.host.size for _, _, memory in placed)
    limit = desired.host_memory_limit * discovered.memory_bytes
    if not discovered.memory_bytes or total <= limit:
        return
    parts = " + ".join(
        f"{gib(memory.host.size):.1f} ({service.name}, {'measured' if memory.host.measured else 'estimated'})"
        for service, _, memory in placed
    )
    yield Refusal(
        where="vllm_service_services",
        what=f"The host's memory can't hold all services asleep: {parts} = {gib(total):.1f} GiB of "
        f"{gib(discovered.memory_bytes):.1f} GiB, the limit is {plain(desired.host_memory_limit)}.",
        why="Asleep at level 1 the weights are in pinned host memory, about twice their size (on CPU devices "
        "the whole engine is); what doesn't fit ends with the kernel killing processes.",
        remedy=f"Take {gib(total) - gib(int(limit)):.1f} GiB off: fewer services, smaller or quantised "
        "models; vllm_service_host_memory_limit sets the limit.",
    )
