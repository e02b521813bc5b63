#!/usr/bin/python
"""Bring wheels from the controller to the box as one file."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.bundle_manifest import BundleError, check_name

DOCUMENTATION = r"""
module: bundle_wheels
short_description: Bring wheels from the controller to the box as one file
description:
  - C(packed) puts wheels into one archive, on the controller; the same wheels give the same archive.
  - C(unpacked) makes a folder on the box hold what such an archive holds, and no other wheel.
options:
  state:
    description: What to do.
    type: str
    choices: [packed, unpacked]
    required: true
  archive:
    description: The archive.
    type: path
    required: true
  root:
    description: Folder to unpack into; needed for C(unpacked).
    type: path
  sets:
    description: For C(packed), a C(folder) with its C(wheels), each by its C(file), for each kind of machine.
    type: list
    elements: dict
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Unpack the wheels
  bundle_wheels:
    state: unpacked
    archive: /var/lib/vllm-frontdoor/bundle/wheels.tar
    root: /var/lib/vllm-frontdoor/bundle/wheels
"""

RETURN = r"""
wheels:
  description: The wheels, each with the name of its set before it.
  returned: always
  type: list
  elements: str
"""


class WheelsError(ValueError):
    """Wheels that can't be brought; the text is a sentence for people."""


def sources(sets: list[dict[str, Any]]) -> dict[str, Path]:
    """The wheels by their names in the archive; sets of the same folder are one."""
    return {
        f"{Path(each['folder']).name}/{wheel['file']}": Path(each["folder"]) / wheel["file"]
        for each in sets
        for wheel in each["wheels"]
    }


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A place beside `target` whose content takes its place when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        yield Path(folder) / target.name


def pack(archive: Path, wheels: dict[str, Path]) -> bool:
    """Write the archive, unless it is there and the same; tells whether it was written.

    Raises OSError where a wheel can't be read or the archive can't be written.
    """
    with _beside(archive) as partial:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as packed:
            for name, path in sorted(wheels.items()):
                # Neither time nor owner: the same wheels give the same archive.
                described = tarfile.TarInfo(name)
                described.size, described.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    packed.addfile(described, file)
        if archive.is_file() and sha256_of(archive) == sha256_of(partial):
            return False
        partial.replace(archive)
    return True


def unpack(archive: Path, root: Path) -> tuple[bool, list[str]]:
    """Make `root` hold the archive's wheels alone; tells whether anything changed, and their names.

    Raises WheelsError for an archive that is damaged, and BundleError for one that leads elsewhere.
    """
    with _beside(root) as partial:
        partial.mkdir()
        try:
            with tarfile.open(archive, "r:") as packed:
                for member in packed:
                    _write(packed, member, partial, archive)
        except tarfile.TarError as error:
            raise WheelsError(
                f"The archive {archive} of wheels is damaged ({error}); run it again."
            ) from None
        wheels = _digests(partial)
        if wheels == _digests(root):
            return False, sorted(wheels)
        if root.exists():
            shutil.rmtree(root)
        partial.replace(root)
    return True, sorted(wheels)


def _write(packed: tarfile.TarFile, member: tarfile.TarInfo, root: Path, archive: Path) -> None:
    check_name(member.name, str(archive))
    file = packed.extractfile(member)
    if file is None:
        raise WheelsError(f"The archive {archive} of wheels holds {member.name}, which is no file.")
    target = root / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as written:
        shutil.copyfileobj(file, written)


def _digests(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): sha256_of(path)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    """Pack or unpack."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["packed", "unpacked"]},
            "archive": {"type": "path", "required": True},
            "root": {"type": "path"},
            "sets": {"type": "list", "elements": "dict"},
        },
        required_if=[("state", "packed", ["sets"]), ("state", "unpacked", ["root"])],
    )
    asked = module.params
    archive = Path(asked["archive"])
    try:
        if asked["state"] == "packed":
            found = sources(asked["sets"])
            changed, wheels = pack(archive, found), sorted(found)
        else:
            changed, wheels = unpack(archive, Path(asked["root"]))
    except (BundleError, WheelsError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, wheels=wheels)


if __name__ == "__main__":
    main()
