"""GPU memory: what may be awake together on one GPU has to fit.

A fraction is of the GPU's *total* memory and per engine, and it contains that engine's own context; vLLM
wants as much *free* when it starts (vLLM 0.27.1). Fractions are exact decimals: a hair over is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import ROUND_UP, Decimal

from ..devices import device_kind, devices_of, known_devices
from ..model import Desired, Device, Discovered, Refusal, Service

_GIB = Decimal(2**30)


def gib(count: int) -> Decimal:
    """Bytes as GiB."""
    return Decimal(count) / _GIB


def plain(number: Decimal) -> str:
    """A decimal without an exponent."""
    return format(number, "f")


def check(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that memory gives; devices that nobody knows are another rule's matter."""
    known = known_devices(desired, discovered, device_kind(desired, discovered))
    placed = [(service, devices_of(service, known)) for service in desired.services]
    return [
        *(refusal for service, devices in placed for refusal in _of_service(service, devices)),
        *_sums(desired, placed),
    ]


def _of_service(service: Service, devices: tuple[Device, ...]) -> Iterator[Refusal]:
    kinds = {device.kind for device in devices}
    if kinds == {"cuda"} and service.memory_fraction is None:
        yield Refusal(
            where=f"{service.where}.memory_fraction",
            what=f"{service.name} says no memory_fraction.",
            why="vLLM would take 0.9 of the GPU, whoever else is there.",
            remedy="Set memory_fraction: the share of the GPU's whole memory, such as 0.45.",
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


def _fraction(service: Service) -> Decimal:
    return Decimal(0) if service.memory_fraction is None else service.memory_fraction


def _sums(desired: Desired, placed: list[tuple[Service, tuple[Device, ...]]]) -> Iterator[Refusal]:
    users: dict[str, list[Service]] = defaultdict(list)
    devices: dict[str, Device] = {}
    for service, found in placed:
        for device in {device.key: device for device in found if device.kind == "cuda"}.values():
            users[device.key].append(service)
            devices.setdefault(device.key, device)
    for key, services in sorted(users.items()):
        total = sum((_fraction(service) for service in services), Decimal(0))
        if total > desired.memory_limit:
            yield _over_limit(devices[key], services, total, desired.memory_limit)


def _over_limit(device: Device, services: list[Service], total: Decimal, limit: Decimal) -> Refusal:
    parts = " + ".join(f"{plain(_fraction(service))} ({service.name})" for service in services)
    memory = gib(device.memory_bytes or 0)
    excess = ((total - limit) * memory).quantize(Decimal("0.01"), rounding=ROUND_UP)
    return Refusal(
        where=" and ".join(f"{service.where}.memory_fraction" for service in services),
        what=f"{device.name} is over its memory limit: {parts} = {plain(total)}, the limit is "
        f"{plain(limit)}.",
        why=f"They may be awake together, and {plain(total)} of {memory:.2f} GiB is "
        f"{total * memory:.2f} GiB; the rest is needed for what sleeps there and for peaks.",
        remedy=f"Take at least {plain(total - limit)} off ({excess} GiB), or move a service "
        "to another GPU; vllm_service_memory_limit sets the limit.",
    )
