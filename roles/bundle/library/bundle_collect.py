#!/usr/bin/python
"""Make a bundle out of what a box has."""

from __future__ import annotations

import platform
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import BUILD_SECONDS, Docker, DockerError, image_id
from ansible.module_utils.bundle_archive import measure, opened, write_archive
from ansible.module_utils.bundle_manifest import (
    IMAGES,
    BundleError,
    Manifest,
    Member,
    check_name,
    model_member,
)
from ansible.module_utils.model_files_hub import load_record, record_document
from ansible.module_utils.model_files_places import Places

DOCUMENTATION = r"""
module: bundle_collect
short_description: Make a bundle out of what a box has
description:
  - Writes one archive with images, models and packages, and a manifest with the SHA-256 of each file.
    A bundle that holds the same already is left alone.
options:
  output:
    description: The bundle to write, on the box.
    type: path
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  images:
    description: References of images; other names of the same images under C(vllm-frontdoor/) go with them.
    type: list
    elements: str
    required: true
  models:
    description: Model folders.
    type: list
    elements: path
    required: true
  root:
    description: Folder with C(packages/) and C(wheels/) to take along.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Make a bundle
  bundle_collect:
    output: /srv/frontdoor.bundle
    images: [vllm/vllm-openai:v0.27.1]
    models: [/var/lib/vllm-frontdoor/models/Qwen3-8B]
    root: /srv/parts
"""

RETURN = r"""
manifest_sha256:
  description: SHA-256 of the manifest, for C(frontdoor_bundle_sha256).
  returned: always
  type: str
msg:
  description: What the bundle holds, in a sentence.
  returned: always
  type: str
"""

_OURS = "vllm-frontdoor/"


def image_ids(docker: Docker, references: list[str]) -> dict[str, str]:
    """The ids of images, and of the other names that ours have. Raises BundleError or DockerError."""
    found: dict[str, str] = {}
    for reference in references:
        image = docker.image(reference)
        if image is None:
            raise BundleError(f"The image {reference} is not on the box; './box site' brings it.")
        names = [name for name in image.get("RepoTags") or [] if name.startswith(_OURS)]
        found |= {name: str(image_id(image)) for name in [reference, *names]}
    return found


def sources(models: list[str], root: Path) -> dict[str, Path]:
    """Every file that goes into the bundle, by its name there; images excepted. Raises BundleError."""
    found: dict[str, Path] = {}
    for folder in (Path(model) for model in models):
        if not folder.is_dir():
            raise BundleError(f"The model folder {folder} is not on the box; pull the model first.")
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".lock", ".incomplete"):
                found[model_member(folder.name, path.relative_to(folder).as_posix())] = path
    for path in sorted([*root.glob("packages/*.deb"), *root.glob("wheels/*/*.whl")]):
        found[path.relative_to(root).as_posix()] = path
    return found


def described(asked: dict[str, Any], images: dict[str, str], files: dict[str, Path]) -> Manifest:
    """The manifest, as far as it is known before the images are saved."""
    release = platform.freedesktop_os_release()
    members = {name: measure(path) for name, path in files.items()}
    for name in members:
        check_name(name, asked["output"])
    models: dict[str, dict[str, str]] = {}
    records: dict[str, dict[str, Any]] = {}
    for folder in (Path(model) for model in asked["models"]):
        prefix = model_member(folder.name, "")
        models[folder.name] = {
            name.removeprefix(prefix): each.sha256
            for name, each in members.items()
            if name.startswith(prefix)
        }
        record = load_record(Places(folder.parent, folder.name).record)
        if record is not None:
            records[folder.name] = record_document(record)
    return Manifest(
        made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        distribution=f"{release.get('ID', 'unknown')} {release.get('VERSION_ID', '')}".strip(),
        machine=platform.machine(),
        members=members,
        images=images,
        models=models,
        records=records,
    )


def same_already(output: Path, manifest: Manifest) -> str | None:
    """The SHA-256 of the manifest of a bundle that holds the same; None when there is none."""
    if not output.is_file():
        return None
    try:
        with opened(output) as (found, _, digest):
            return str(digest) if found.contents == manifest.contents else None
    except BundleError:
        return None


def make(docker: Docker, output: Path, manifest: Manifest, files: dict[str, Path]) -> str:
    """Save the images and write the bundle; answers the SHA-256 of its manifest."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as folder:
        saved: dict[str, Path] = {}
        if manifest.images:
            saved[IMAGES] = Path(folder) / IMAGES
            words = ("save", "--output", str(saved[IMAGES]), *sorted(manifest.images))
            docker.must("Saving the images", *words, seconds=BUILD_SECONDS)
        members: dict[str, Member] = {name: measure(path) for name, path in saved.items()}
        whole = replace(manifest, members={**manifest.members, **members})
        check_room(output, whole)
        digest: str = write_archive(output, whole, {**files, **saved})
    return digest


def check_room(output: Path, manifest: Manifest) -> None:
    """Raise BundleError where the bundle does not fit beside what is there."""
    needed = sum(each.size for each in manifest.members.values())
    free = shutil.disk_usage(output.parent).free
    if needed + (1 << 30) > free:
        raise BundleError(
            f"The bundle takes {needed / 1e9:.1f} GB, and 1.1 GB shall stay free, but {output.parent} has "
            f"{free / 1e9:.1f} GB free; name another place (bundle_output)."
        )


def main() -> None:
    """Make it, unless the same is there."""
    module = AnsibleModule(
        argument_spec={
            "output": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": ""},
            "images": {"type": "list", "elements": "str", "required": True},
            "models": {"type": "list", "elements": "path", "required": True},
            "root": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    asked = module.params
    docker, output = Docker(asked["docker_host"]), Path(asked["output"])
    try:
        files = sources(asked["models"], Path(asked["root"]))
        manifest = described(asked, image_ids(docker, asked["images"]), files)
        digest = same_already(output, manifest)
        changed = digest is None
        if digest is None:
            digest = "" if module.check_mode else make(docker, output, manifest, files)
    except (BundleError, DockerError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=changed,
        manifest_sha256=digest,
        msg=(
            f"bundle {output}: {len(manifest.images)} images, {len(manifest.models)} models, "
            f"{len(files)} files; the sha256 of its manifest is {digest}"
        ),
    )


if __name__ == "__main__":
    main()
