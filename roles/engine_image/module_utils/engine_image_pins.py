"""Which image a reference has to be: the digest that a person gave, or the first one seen (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 1


class PinError(ValueError):
    """An image that is not the pinned one; the text is a sentence for people."""


@dataclass(frozen=True)
class Pin:
    """What a reference was when first seen: `digest` in its registry, or `archive`'s sha256; and the `id`."""

    id: str
    digest: str = ""
    archive: str = ""


def read_pins(document: Any, source: str) -> dict[str, Pin]:
    """The pins in the record `document`; raises PinError when it is not such a record."""
    try:
        if document["schema_version"] != SCHEMA_VERSION:
            raise PinError(
                f"The record of images {source} has schema version {document['schema_version']}, this "
                "release reads "
                f"{SCHEMA_VERSION}: deploy with the release that wrote it, or move the file away to pin anew."
            )
        return {str(reference): Pin(**pin) for reference, pin in document["images"].items()}
    except (KeyError, TypeError, AttributeError):
        raise PinError(
            f"The record of images {source} can't be understood; restore it, or move it away to pin the "
            "images anew."
        ) from None


def pins_document(pins: Mapping[str, Pin]) -> dict[str, Any]:
    """The record to write."""
    images = {
        reference: {"id": pin.id, "digest": pin.digest, "archive": pin.archive}
        for reference, pin in pins.items()
    }
    return {"schema_version": SCHEMA_VERSION, "images": images}


def expected_digest(reference: str, given: str, pins: Mapping[str, Pin]) -> str:
    """The digest that `reference` must have: the given one, else the recorded one, else none (empty)."""
    if given:
        return given
    pin = pins.get(reference)
    return pin.digest if pin is not None else ""


def checked_digest(reference: str, expected: str, digests: Sequence[str], *, given: bool, record: str) -> str:
    """The digest to pin for an image on the box that has `digests`.

    Raises PinError when the image has another digest than `expected`, or none at all.
    """
    if not digests:
        raise PinError(
            f"The image {reference} on the box has no digest, so it did not come from a registry and can't "
            "be pinned: "
            "remove it there (docker image rm) to have it pulled, or set engine_image_source to archive or "
            "build."
        )
    if not expected:
        return digests[0]
    if expected in digests:
        return expected
    where = "engine_image_digest" if given else f"the record {record}, written when it was first pulled"
    raise PinError(
        f"The image {reference} has the digest {digests[0]}, but {where} says {expected}. Nothing was "
        "changed. If the "
        f"new image is wanted, set engine_image_digest: {digests[0]}; if not, remove the image from the box "
        "(docker image rm) and run again."
    )


def repository_of(reference: str) -> str:
    """A reference without its tag or digest: the last colon is a tag's only when no slash follows it."""
    name = reference.split("@", 1)[0]
    head, colon, tail = name.rpartition(":")
    return head if colon and "/" not in tail else name
