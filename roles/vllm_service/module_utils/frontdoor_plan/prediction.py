"""What a run with --check may take for granted, since an earlier task of the real run would have made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from .devices import device_kind, known_devices
from .evidence import Evidence, Probe
from .instance import LABEL_DEVICE_KIND
from .model import Desired, Device, Discovered, Docker, Image, PathFacts, WeightEvidence
from .rules.gate import PROBE_NAMES, needed_devices

UNKNOWN_IMAGE_ID = "sha256:" + "0" * 64
"""Stands for the id of an image that isn't there yet; never deployed, since nothing is in check mode."""

_PREDICTED = "predicted"


def predict(desired: Desired, discovered: Discovered, evidence: Evidence) -> tuple[Discovered, Evidence]:
    """The box and its evidence as the tasks before the plan will have left them, if they succeed.

    Docker answers, the images are there, the models to be fetched are there, and what nobody has checked yet
    (or what changed since) turns out well: weights, and devices on the staged path. Anything else stays as it
    was found; what failed stays failed.
    """
    references = (desired.image, desired.router.image)
    images = {
        reference: discovered.images.get(reference) or _image_to_be(reference, desired)
        for reference in references
        if reference
    }
    folders = {
        path: PathFacts(exists=True, is_directory=True, entries=1)
        for path in desired.fetched_models
        if not (path in discovered.paths and discovered.paths[path].entries)
    }
    paths = {**discovered.paths, **folders}
    box = replace(
        discovered,
        docker=Docker(reachable=True),
        images={**discovered.images, **images},
        paths=paths,
    )
    weights = {**evidence.weights, **_good_evidence(desired, box, evidence.weights)}
    return box, replace(evidence, weights=weights, probes=_good_probes(desired, box, evidence))


def taken_for_granted(desired: Desired, discovered: Discovered, evidence: Evidence) -> tuple[str, ...]:
    """What `predict` adds to what was found, in words."""
    box, assumed = predict(desired, discovered, evidence)
    services = sorted(desired.services, key=lambda service: service.slot)
    fetched = [each.name for each in services if box.paths.get(each.path) != discovered.paths.get(each.path)]
    unchecked = [
        each.name
        for each in services
        if each.path in assumed.weights and assumed.weights[each.path].finished_at == _PREDICTED
    ]
    return (
        *(["that Docker answers"] if not discovered.docker.reachable else []),
        *([f"fetching the models of {', '.join(fetched)}"] if fetched else []),
        *([f"weights of {', '.join(unchecked)}"] if unchecked else []),
        *_untested(desired, box, assumed),
        *(["that the engine image takes the arguments"] if _is_unknown(desired.image, box) else []),
        *(["that the router takes its settings"] if _is_unknown(desired.router.image, box) else []),
    )


def _untested(desired: Desired, box: Discovered, assumed: Evidence) -> Iterator[str]:
    for kind, devices in needed_devices(desired, box).items():
        newest = assumed.newest(kind)
        if newest is not None and newest.finished_at == _PREDICTED:
            names = sorted({device.name for device in devices})
            yield f"{PROBE_NAMES[kind]} of {', '.join(names)}"


def _is_unknown(reference: str, box: Discovered) -> bool:
    image = box.images.get(reference)
    return image is not None and image.id == UNKNOWN_IMAGE_ID


def _good_probes(desired: Desired, box: Discovered, evidence: Evidence) -> dict[str, tuple[Probe, ...]]:
    """Probes that the run would make: those of which nothing current is there."""
    known = known_devices(desired, box, device_kind(desired, box))
    addresses = [gpu.pci_address for gpu in box.gpus]
    probes = dict(evidence.probes)
    for kind in needed_devices(desired, box):
        newest = evidence.newest(kind)
        if newest is None or newest.differences or evidence.suspicions(newest, addresses):
            distinct = {device.key: device for device in known.values()}
            probes[kind] = (_good_probe(kind, list(distinct.values()), box), *probes.get(kind, ()))
    return probes


def _good_probe(kind: str, devices: list[Device], box: Discovered) -> Probe:
    """A probe that ends well. The peer path is not predicted: it is never earned by one probe."""
    boot_id = box.identity.get("boot_id")
    on_cpu = all(device.kind == "cpu" for device in devices)
    return Probe(
        kind=kind,
        verdict="not_applicable" if kind == "p2p" else "clean",
        class_=None,
        finished_at=_PREDICTED,
        boot_id=boot_id if isinstance(boot_id, str) else None,
        details={
            "devices": [{"uuid": device.uuid, "verdict": "clean"} for device in devices],
            "pairs": [
                {"source": source, "destination": destination, "verdict": "not_applicable"}
                for source in range(len(devices))
                for destination in range(len(devices))
                if source != destination
            ],
            "control_words": 1,
            "kind": "cpu" if on_cpu else "cuda",
        },
    )


def _image_to_be(reference: str, desired: Desired) -> Image:
    """An image whose label nobody can read yet: its kind follows from the devices that services name."""
    named_cores = {name.name for name in desired.device_names if name.cores is not None}
    used = {device for service in desired.services for device in service.devices}
    kind = "cpu" if used & named_cores else "cuda"
    return Image(reference=reference, id=UNKNOWN_IMAGE_ID, labels={LABEL_DEVICE_KIND: kind})


def _good_evidence(
    desired: Desired, box: Discovered, evidence: Mapping[str, WeightEvidence]
) -> dict[str, WeightEvidence]:
    unchecked = (
        service.path
        for service in desired.services
        if service.path in box.paths and (service.path not in evidence or evidence[service.path].outdated)
    )
    verdict = desired.weights_required[0]
    return {path: WeightEvidence(folder=path, verdict=verdict, finished_at=_PREDICTED) for path in unchecked}
