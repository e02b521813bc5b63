"""A model split over several devices: the numbers fit, and so do the model's own."""

from __future__ import annotations

from collections.abc import Iterator

from ..devices import device_kind, devices_of, known_devices
from ..model import Desired, Discovered, Refusal, Service


def check(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that tensor_parallel and pipeline_parallel give."""
    known = known_devices(desired, discovered, device_kind(desired, discovered))
    return [
        refusal
        for service in desired.services
        for refusal in [
            *_numbers(service),
            *_heads(service, discovered),
            *_pipeline_on_cpu(service, {device.kind for device in devices_of(service, known)}),
        ]
    ]


def _numbers(service: Service) -> Iterator[Refusal]:
    wanted = service.tensor_parallel * service.pipeline_parallel
    if wanted == len(service.devices) or not service.devices:
        return
    parallelism = f"tensor_parallel {service.tensor_parallel} x pipeline_parallel {service.pipeline_parallel}"
    yield Refusal(
        where=f"{service.where}.devices",
        what=f"{service.name} names {len(service.devices)} device(s) for {parallelism} = {wanted}.",
        why="An engine uses exactly one device for each part of its model.",
        remedy=f"Name {wanted} device(s), or set tensor_parallel: {len(service.devices)} and "
        "pipeline_parallel: 1.",
    )


def _heads(service: Service, discovered: Discovered) -> Iterator[Refusal]:
    facts = discovered.models.get(service.path)
    heads = None if facts is None else facts.attention_heads
    if heads is None or heads % service.tensor_parallel == 0:
        return
    fitting = [str(parts) for parts in range(1, min(heads, 64) + 1) if heads % parts == 0]
    yield Refusal(
        where=f"{service.where}.tensor_parallel",
        what=f"{service.name} wants tensor_parallel {service.tensor_parallel} for a model with {heads} "
        "attention heads.",
        why=f"Each device takes whole heads, and {heads} can't be divided by {service.tensor_parallel} "
        f"(read from {service.path}/config.json).",
        remedy=f"Set tensor_parallel to one of {', '.join(fitting)}, with as many devices.",
    )


def _pipeline_on_cpu(service: Service, kinds: set[str]) -> Iterator[Refusal]:
    if service.pipeline_parallel > 1 and "cpu" in kinds:
        yield Refusal(
            where=f"{service.where}.pipeline_parallel",
            what=f"{service.name} wants pipeline_parallel {service.pipeline_parallel} on CPU devices.",
            why="There the engine dies in an assertion at its first request (vLLM 0.32.0).",
            remedy="Set pipeline_parallel: 1; tensor_parallel works on CPU devices.",
        )
