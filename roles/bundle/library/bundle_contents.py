#!/usr/bin/python
"""Load the images of a bundle and put its models in place."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from tarfile import TarFile
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError, image_id, last_lines
from ansible.module_utils.box_tools_files import write_json
from ansible.module_utils.bundle_archive import extract, opened, stream
from ansible.module_utils.bundle_manifest import IMAGES, BundleError, Manifest, differing_images, model_member
from ansible.module_utils.engine_image_pins import Pin, PinError
from ansible.module_utils.engine_image_record import remember
from ansible.module_utils.model_files_folder import inspect, put_in_place, record_path, save_record
from ansible.module_utils.model_files_places import Places, readable_for_all
from ansible.module_utils.model_files_rules import sentences

DOCUMENTATION = r"""
module: bundle_contents
short_description: Load the images of a bundle and put its models in place
description:
  - Takes the images and the models of a bundle that C(bundle_open) has verified. What is there and right is
    left alone; a model's file that is missing or altered is restored out of the bundle.
options:
  bundle:
    description: The bundle on the box.
    type: path
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  record:
    description: File on the box with what was loaded so far.
    type: path
    required: true
  models_root:
    description: Folder that holds the models.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Take images and models out of the bundle
  bundle_contents:
    bundle: /srv/frontdoor.bundle
    record: /var/lib/vllm-frontdoor/images.json
    models_root: /var/lib/vllm-frontdoor/models
"""

RETURN = r"""
changes:
  description: What was done, or would be, in sentences.
  returned: always
  type: list
  elements: str
"""


def load_images(
    docker: Docker, asked: dict[str, Any], manifest: Manifest, archive: TarFile, *, check_mode: bool
) -> list[str]:
    """Load what is missing; answers sentences. Raises DockerError or BundleError."""
    if check_mode and docker.unreachable() is not None:
        return [f"image {reference}: loaded" for reference in manifest.images]
    present = {reference: image_id(docker.image(reference)) for reference in manifest.images}
    missing = differing_images(manifest.images, present)
    if missing and not check_mode:
        stream(archive, IMAGES, lambda file: _load(docker, file))
        for reference in missing:
            found = image_id(docker.image(reference))
            if found != manifest.images[reference]:
                raise BundleError(
                    f"After loading the bundle's images, {reference} is {found}, not "
                    f"{manifest.images[reference]}."
                )
    if not check_mode and manifest.images:
        sha256 = manifest.members[IMAGES].sha256
        for reference, image in manifest.images.items():
            remember(Path(asked["record"]), reference, Pin(id=image, archive=sha256))
    return [f"image {reference}: loaded" for reference in missing]


def _load(docker: Docker, file: IO[bytes]) -> None:
    command = ["docker", *(["--host", docker.host] if docker.host else []), "load", "--quiet"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as loading:
        assert loading.stdin is not None
        # Where docker stops reading, it says why, below.
        with contextlib.suppress(BrokenPipeError):
            shutil.copyfileobj(file, loading.stdin, 1 << 20)
        said, _ = loading.communicate()
    if loading.returncode != 0:
        raise DockerError(
            f"Loading the bundle's images failed: {last_lines(said.decode(errors='replace'), 3)}"
        )


def put_models(root: Path, manifest: Manifest, archive: TarFile, *, check_mode: bool) -> list[str]:
    """Restore what is missing or altered; answers sentences. Raises BundleError."""
    changes: list[str] = []
    for name, files in manifest.models.items():
        wrong, hashes = inspect(root, name, files, rehash=False)
        changes += sentences(name, len(files), wrong)
        if check_mode:
            continue
        if wrong:
            _put_model(root, name, wrong, manifest, archive)
        if wrong or hashes:
            save_record(record_path(root, name), root / name, files)
        places = Places(root, name)
        if name in manifest.records and not places.record.exists():
            write_json(places.record, manifest.records[name])
    return changes


def _put_model(root: Path, name: str, wrong: dict[str, str], manifest: Manifest, archive: TarFile) -> None:
    places = Places(root, name)
    places.clean_up()
    for path in wrong:
        member = model_member(name, path)
        extract(archive, member, places.arriving / path, manifest.members[member])
    readable_for_all(places.arriving)
    put_in_place(places.arriving, places.model, wrong)
    places.clean_up()


def main() -> None:
    """Load and put in place."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": ""},
            "record": {"type": "path", "required": True},
            "models_root": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    asked, check_mode = module.params, module.check_mode
    docker, root = Docker(asked["docker_host"]), Path(asked["models_root"])
    try:
        with opened(Path(asked["bundle"])) as (manifest, archive, _):
            changes = load_images(docker, asked, manifest, archive, check_mode=check_mode)
            changes += put_models(root, manifest, archive, check_mode=check_mode)
    except (BundleError, DockerError, PinError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
