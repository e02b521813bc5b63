"""How much memory a service takes: measured where it was, else estimated so that it errs on the safe side.

Estimates: asleep an engine keeps 1 to 2 GiB of each GPU as a rule, about 1 GiB more for NCCL from four parts
on, and 5 GiB were seen on a real box; pinned host memory is about 1.9 times the weights, since it is rounded
up and not given back (vLLM 0.27.1 to 0.32.0).
"""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

from .calibration import Calibration
from .model import Device, Discovered, Figure, Memory, Service

GIB = 2**30
RESIDUE_BYTES = 5 * GIB
RESIDUE_BYTES_OF_MANY_PARTS = 6 * GIB
MANY_PARTS = 4
HOST_BYTES_PER_WEIGHT_BYTE = 2
CONTEXT_BYTES = 5 * GIB
"""What an engine takes of a GPU beside weights and KV cache: its context, activations and CUDA graphs."""
CPU_PROCESS_BYTES = 3 * GIB // 2
"""What an engine's worker on a CPU device takes of the host beside weights and KV cache."""

_STEP_OF_DERIVED_FRACTIONS = Decimal("0.0001")


def memory_of(
    service: Service,
    devices: tuple[Device, ...],
    discovered: Discovered,
    measured: Calibration | None,
    cpu_kv_cache_gib: int,
) -> Memory:
    """What a service takes of each of its devices and of the host. `measured` is of this very engine."""
    on_cpu = all(device.kind == "cpu" for device in devices)
    weights = _weights(service, discovered)
    return Memory(
        fraction=None if on_cpu else fraction_of(service, devices, discovered),
        residue=Figure(0, True) if on_cpu else _residue(service, measured),
        host=_on_cpu(service, weights, measured, cpu_kv_cache_gib) if on_cpu else _host(weights, measured),
    )


def parts_of(service: Service) -> int:
    """Into how many parts a model is split."""
    return service.tensor_parallel * service.pipeline_parallel


def _weights(service: Service, discovered: Discovered) -> int:
    facts = discovered.models.get(service.path)
    return 0 if facts is None else facts.weights_bytes


def fraction_of(service: Service, devices: tuple[Device, ...], discovered: Discovered) -> Decimal | None:
    """The share of each GPU: as declared, or what weights, KV cache and context need; None when neither says.

    The derived one is rounded up, and may be more than 1: then the model doesn't fit."""
    if service.memory_fraction is not None or service.kv_cache_memory_gib is None:
        return service.memory_fraction
    smallest = min((device.memory_bytes or 0 for device in devices), default=0)
    if not smallest:
        return None
    weights = Decimal(_weights(service, discovered)) / parts_of(service)
    needed = weights + service.kv_cache_memory_gib * GIB + CONTEXT_BYTES
    return (needed / smallest).quantize(_STEP_OF_DERIVED_FRACTIONS, rounding=ROUND_UP)


def _residue(service: Service, measured: Calibration | None) -> Figure:
    if measured is not None:
        return Figure(measured.asleep_bytes_per_device, True)
    many = parts_of(service) >= MANY_PARTS
    return Figure(RESIDUE_BYTES_OF_MANY_PARTS if many else RESIDUE_BYTES, False)


def _host(weights: int, measured: Calibration | None) -> Figure:
    if measured is not None:
        return Figure(measured.host_bytes_asleep, True)
    return Figure(HOST_BYTES_PER_WEIGHT_BYTE * weights, False)


def _on_cpu(service: Service, weights: int, measured: Calibration | None, cpu_kv_cache_gib: int) -> Figure:
    """On a CPU device all of an engine is in the host's memory. Each part has a KV cache of its own."""
    if measured is not None:
        return Figure(measured.host_bytes_asleep, True)
    wish = service.kv_cache_memory_gib
    cache = cpu_kv_cache_gib if wish is None else int(wish)
    return Figure(weights + parts_of(service) * (cache * GIB + CPU_PROCESS_BYTES), False)


def applies(measured: Calibration, service: Service, devices: tuple[Device, ...], image_id: str) -> bool:
    """Whether figures are of this very engine: same folder, image, split and kind of device."""
    kinds = {device.model for device in devices}
    return (
        measured.model_folder == service.path
        and measured.image_id == image_id
        and measured.tensor_parallel == service.tensor_parallel
        and measured.pipeline_parallel == service.pipeline_parallel
        and kinds == {measured.device_name}
    )


def claim(fraction: Decimal, residue: Figure, device: Device) -> Decimal:
    """The share of a GPU that others can't count on, whether the service is awake or asleep.

    A fraction contains the engine's own context; asleep, only the residue stays. So all may be awake
    together, and any of them may sleep, while the claims add up to the limit."""
    if not device.memory_bytes:
        return fraction
    return max(fraction, Decimal(residue.size) / Decimal(device.memory_bytes))
