"""Bundles the package vllmctl, what it shares with other roles and its wheels into one file that Python runs.

The same input gives the same bytes: entries are sorted, and all have one date and one mode. Wheels have to be
pure Python, since nothing can be loaded as a shared library from within a file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

SHEBANG = b"#!/usr/bin/env -S python3 -I\n"
"""Isolated: what PYTHONPATH or a user's own packages say doesn't matter to it."""
MAIN = b"import sys\n\nfrom vllmctl.app import main\n\nsys.exit(main())\n"
_DATE = (1980, 1, 1, 0, 0, 0)
_ROLES = Path(__file__).resolve().parents[2]
SHARED = {
    "box_tools": ("box_tools_docker", "box_tools_files"),
    "gpu_diag": (
        "gpu_diag_commands",
        "gpu_diag_evidence_files",
        "gpu_diag_weights_run",
        "gpu_diag_weights_state",
    ),
    "model_files": (
        "model_files_folder",
        "model_files_hub",
        "model_files_look",
        "model_files_place",
        "model_files_places",
        "model_files_progress",
        "model_files_rules",
        "model_files_run",
    ),
}
"""Modules by role that pull models, under the names by which Ansible, too, takes them to a box."""
PROGRAMS = ("hub_pull.py", "hub_rules.py")
"""What the container runs that downloads."""
_LEFT_OUT = ("RECORD", "INSTALLER", "direct_url.json")


class BundleError(ValueError):
    """The file can't be made; the text is a sentence."""


def bundle(package: Path, wheels: Iterable[Path]) -> bytes:
    """The file's bytes, of the package's folder and the wheels. Raises BundleError."""
    entries = {"__main__.py": MAIN}
    for wheel in wheels:
        entries |= _wheel(wheel)
    for path in sorted(package.rglob("*.py")):
        entries[path.relative_to(package.parent).as_posix()] = path.read_bytes()
    entries |= _shared()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, entries[name])
    return SHEBANG + content.getvalue()


def _shared() -> dict[str, bytes]:
    entries = {"ansible/__init__.py": b"", "ansible/module_utils/__init__.py": b""}
    for role, names in SHARED.items():
        for name in names:
            source = _ROLES / role / "module_utils" / f"{name}.py"
            entries[f"ansible/module_utils/{name}.py"] = source.read_bytes()
    for name in PROGRAMS:
        entries[f"vllmctl/programs/{name}"] = (_ROLES / "model_files" / "files" / name).read_bytes()
    return entries


def _wheel(path: Path) -> dict[str, bytes]:
    if not path.name.endswith("-none-any.whl"):
        raise BundleError(f"{path.name} is not pure Python, so it can't be part of one file.")
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith("/")]
            return {name: wheel.read(name) for name in names if not name.endswith(_LEFT_OUT)}
    except (OSError, zipfile.BadZipFile) as error:
        raise BundleError(f"The wheel {path} can't be read: {error}.") from None
