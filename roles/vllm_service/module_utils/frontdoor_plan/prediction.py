"""What a run with --check may take for granted, since an earlier task of the real run would have made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .instance import LABEL_DEVICE_KIND
from .model import Desired, Discovered, Docker, Image, PathFacts, WeightEvidence

UNKNOWN_IMAGE_ID = "sha256:" + "0" * 64
"""Stands for the id of an image that isn't there yet; never deployed, since nothing is in check mode."""


def predict(
    desired: Desired, discovered: Discovered, evidence: Mapping[str, WeightEvidence]
) -> tuple[Discovered, dict[str, WeightEvidence]]:
    """The box and its evidence as the tasks before the plan will have left them, if they succeed.

    Docker answers, the images are there, the models to be fetched are there, and the weights that nobody has
    checked yet (or that changed) turn out well. Anything else stays as it was found.
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
    return box, {**evidence, **_good_evidence(desired, box, evidence)}


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
    return {path: WeightEvidence(folder=path, verdict=verdict, finished_at="predicted") for path in unchecked}
