"""What a bundle holds, and whether what is found in one is what its manifest says (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

FORMAT = 1
MANIFEST = "MANIFEST.json"
IMAGES = "images.tar"
LARGEST_MANIFEST_BYTES = 64 << 20


class BundleError(ValueError):
    """A bundle that can't be used; the text is a sentence for people."""


@dataclass(frozen=True)
class Member:
    """A file of a bundle: its size in bytes and its SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds. `images` are ids by reference; `models` the SHA-256 of each file by model."""

    made_at: str
    distribution: str
    machine: str
    members: dict[str, Member]
    images: dict[str, str] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def contents(self) -> str:
        """Tells whether two bundles hold the same, whenever and however their images were saved."""
        members = {name: each.sha256 for name, each in self.members.items() if name != IMAGES}
        known = [members, self.images, self.models, self.records, self.distribution, self.machine]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def model_member(model: str, path: str) -> str:
    """The name in the bundle of a model's file."""
    return f"models/{model}/{path}"


def write(manifest: Manifest) -> bytes:
    """The manifest as it stands in the bundle."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True).encode()


def read(content: bytes, bundle: str) -> Manifest:
    """The manifest of a bundle. Raises BundleError when it is none of ours or of another format."""
    try:
        document = json.loads(content)
        number = document.pop("format")
        if number != FORMAT:
            raise BundleError(f"The bundle {bundle} has the format {number}, this is {FORMAT}; make it anew.")
        members = {name: Member(**each) for name, each in document.pop("members").items()}
        manifest = Manifest(members=members, **document)
    except BundleError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BundleError(
            f"{bundle} is no bundle made by './box bundle': its manifest can't be read."
        ) from None
    for name in manifest.members:
        check_name(name, bundle)
    return manifest


def check_name(name: str, bundle: str) -> None:
    """Raise BundleError for a member that would be written outside of where bundles are unpacked."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or str(PurePosixPath(name)) != name:
        raise BundleError(
            f"The bundle {bundle} holds a file {name[:80]!r}, which is no safe path; don't use it."
        )


def check_member(name: str, found: Member, manifest: Manifest, bundle: str) -> None:
    """Raise BundleError, naming the file, where one is not what the manifest says."""
    expected = manifest.members.get(name)
    if expected is None:
        raise BundleError(f"The bundle {bundle} holds {name}, which its manifest doesn't list; don't use it.")
    if found != expected:
        raise BundleError(
            f"The file {name} in the bundle {bundle} is damaged: it has {found.size} bytes and the sha256 "
            f"{found.sha256}, but the manifest says {expected.size} bytes and {expected.sha256}. Nothing was "
            "installed; copy the bundle again."
        )


def check_complete(seen: set[str], manifest: Manifest, bundle: str) -> None:
    """Raise BundleError where the manifest lists what isn't there."""
    missing = sorted(set(manifest.members) - seen)
    if missing:
        raise BundleError(
            f"The bundle {bundle} lacks {missing[0]}, which its manifest lists ({len(missing)} such "
            "files); copy "
            "it again."
        )


def check_system(manifest: Manifest, distribution: str, machine: str, bundle: str) -> None:
    """Raise BundleError where a bundle was made for other machines."""
    if manifest.machine != machine:
        raise BundleError(f"The bundle {bundle} is for {manifest.machine}; this box is {machine}.")
    packages = any(name.startswith("packages/") for name in manifest.members)
    if packages and manifest.distribution != distribution:
        raise BundleError(
            f"The bundle {bundle} carries packages of {manifest.distribution}; this box is "
            f"{distribution}. Make it "
            "on a machine of the same distribution, or without packages (bundle_packages: [])."
        )


def wheels_of(manifest: Manifest, name: str) -> list[str]:
    """Members that are wheels of the distribution `name`, as wheels spell it."""
    return [
        member
        for member in sorted(manifest.members)
        if member.startswith("wheels/") and PurePosixPath(member).name.startswith(f"{name}-")
    ]


def differing_images(images: Mapping[str, str], present: Mapping[str, str | None]) -> list[str]:
    """References that don't name the bundle's image on the box."""
    return sorted(reference for reference, image in images.items() if present.get(reference) != image)
