"""Parallelism over several devices: refused until its gate exists.

The gate (peer-to-peer words, integrity, transport) will be asked here, with the evidence as one more
argument; no other module decides on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Desired, Refusal, Service


def check(desired: Desired) -> list[Refusal]:
    """A refusal for every service that wants more than one device."""
    return [refusal for service in desired.services for refusal in _of_service(service)]


def _of_service(service: Service) -> Iterator[Refusal]:
    wanted = service.tensor_parallel * service.pipeline_parallel
    parallelism = f"tensor_parallel {service.tensor_parallel} x pipeline_parallel {service.pipeline_parallel}"
    if wanted == 1 and len(service.devices) <= 1:
        return
    if wanted != len(service.devices):
        yield Refusal(
            where=f"{service.where}.devices",
            what=f"{service.name} names {len(service.devices)} device(s) for {parallelism} = {wanted}.",
            why="An engine uses exactly one device for each part of its model.",
            remedy="Name one device, and leave tensor_parallel and pipeline_parallel at 1.",
        )
        return
    yield Refusal(
        where=f"{service.where}.tensor_parallel",
        what=f"{service.name} wants its model spread over {wanted} devices ({', '.join(service.devices)}).",
        why="Parts of a model talk from GPU to GPU, and a path that corrupts words gives every client "
        "garbage. It is refused until its gate exists. For this very set of devices that gate will ask for a "
        "p2p_check of this boot with a clean control arm over the staged path, clean integrity of each "
        "device, and accepted weights.",
        remedy="For now give it one device: devices: "
        f"[{service.devices[0]}], tensor_parallel: 1, pipeline_parallel: 1 (a quantised model may fit).",
    )
