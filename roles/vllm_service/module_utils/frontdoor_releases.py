"""Releases: what was deployed, kept so that one can go back to it. Pure: no I/O, no clock, no globals.

A release holds the declaration that it was planned from and the ids of its images. Going back means planning
that declaration anew, with today's evidence: what lies in a release is never deployed as it lies there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 1
KEPT = 5


class ReleaseError(Exception):
    """A release can't be used: a sentence for people."""


@dataclass(frozen=True)
class Content:
    """What makes a release: variables by name, images by what they are for, digests of services and files.

    `images` maps C(engine) and C(router) to reference and id, `services` names to their definitions' digests,
    `files` paths to the sha256 of what was rendered.
    """

    variables: Mapping[str, Any]
    images: Mapping[str, Mapping[str, str]]
    services: Mapping[str, str]
    files: Mapping[str, str]

    @property
    def image_ids(self) -> dict[str, str]:
        return {use: image["id"] for use, image in self.images.items()}


@dataclass(frozen=True)
class Release:
    """One release. `back_to` is the number of the one that it went back to, None for an ordinary one."""

    number: int
    made_at: str
    made_by: str
    content: Content
    back_to: int | None = None

    @property
    def name(self) -> str:
        return f"release {self.number}"


def sha256(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def to_document(release: Release) -> dict[str, Any]:
    """The release as JSON data, with a digest over all of it."""
    content = release.content
    document = {
        "schema_version": SCHEMA_VERSION,
        "number": release.number,
        "made_at": release.made_at,
        "made_by": release.made_by,
        "back_to": release.back_to,
        "variables": dict(content.variables),
        "images": {use: dict(image) for use, image in content.images.items()},
        "services": dict(content.services),
        "files": dict(content.files),
    }
    return {**document, "digest": _digest(document)}


def from_document(document: Any) -> Release:
    """The release that a document describes. Raises ReleaseError when it is damaged or was altered."""
    if not isinstance(document, Mapping) or document.get("schema_version") != SCHEMA_VERSION:
        raise ReleaseError("it is no release of this version of vllm-frontdoor")
    without = {key: value for key, value in document.items() if key != "digest"}
    if document.get("digest") != _digest(without):
        raise ReleaseError("it was altered by hand")
    try:
        content = Content(
            variables=document["variables"],
            images=document["images"],
            services=document["services"],
            files=document["files"],
        )
        return Release(
            number=int(document["number"]),
            made_at=str(document["made_at"]),
            made_by=str(document["made_by"]),
            content=content,
            back_to=document["back_to"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"it is incomplete: {error}") from error


def _digest(document: Mapping[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def altered_files(release: Release, found: Mapping[str, str | None]) -> list[str]:
    """The rendered files of a release that differ from what was rendered, or are gone.

    `found` maps paths to the sha256 of what lies there, None for what is missing.
    """
    wanted = release.content.files
    return sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))


def is_same(one: Content, other: Content) -> bool:
    """Whether two releases deploy the same, whatever their variables say beyond that."""
    return (one.files, one.image_ids) == (other.files, other.image_ids)


def next_number(numbers: Iterable[int]) -> int:
    """The number of a new release."""
    return max(numbers, default=0) + 1


def surplus(numbers: Iterable[int], kept: int = KEPT) -> list[int]:
    """Numbers of the releases that are kept no longer, when the newest `kept` are."""
    return sorted(numbers)[:-kept]


def superseded_images(leaving: Iterable[Release], staying: Iterable[Release]) -> list[str]:
    """Ids of images that only releases use that are leaving."""
    used = {image for release in staying for image in release.content.image_ids.values()}
    return sorted({image for release in leaving for image in release.content.image_ids.values()} - used)


def rollback_target(
    intact: Sequence[Release], problems: Mapping[int, str], deployed: Mapping[str, str], wanted: int | None
) -> Release:
    """The release to go back to: the one wanted, or the newest that isn't what runs now.

    `deployed` maps services to the definitions they run with: where that isn't the newest release, a run
    failed on its way to another one, and the newest release is where to go. `problems` says of releases by
    number why they can't be used. Raises ReleaseError.
    """
    by_number = {release.number: release for release in intact}
    if wanted is not None:
        return _chosen(by_number, problems, wanted)
    numbers = sorted({*by_number, *problems}, reverse=True)
    if not numbers:
        raise ReleaseError("There is no release on this box yet: ./box site makes the first one.")
    newest = by_number.get(numbers[0])
    if newest is not None and dict(newest.content.services) == dict(deployed):
        numbers = numbers[1:]
    if not numbers:
        raise ReleaseError(
            f"There is no release before {newest.name if newest else 'this one'}, which is what runs now."
        )
    return _chosen(by_number, problems, numbers[0])


def _chosen(by_number: Mapping[int, Release], problems: Mapping[int, str], number: int) -> Release:
    others = ", ".join(map(str, sorted(by_number))) or "none"
    if number in problems:
        raise ReleaseError(
            f"Release {number} can't be used: {problems[number]}. Choose another one with "
            f"vllm_service_release (there: {others}), or deploy what you want with ./box site."
        )
    if number not in by_number:
        raise ReleaseError(
            f"There is no release {number} on this box (vllm_service_release); there: {others}."
        )
    return by_number[number]


def description(release: Release) -> str:
    """A release for people."""
    back = f", which went back to release {release.back_to}" if release.back_to else ""
    references = sorted({image["reference"] for image in release.content.images.values()})
    return (
        f"release {release.number} of {release.made_at} by {release.made_by}{back} ({', '.join(references)})"
    )
