"""Fills one layer of an image: runs as root inside a container without network, on what is mounted at /mnt.

/mnt/layer.json says what to do: {"wheels": bool, "copy": [{"source": "0", "dest": "/opt/x"}]}. Wheels lie in
/mnt/wheels, their pins in /mnt/requirements.txt, the trees to copy in /mnt/copy/.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MOUNT = Path("/mnt")


def install_wheels() -> None:
    """Install exactly the pinned wheels, verified once more by their hashes."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--require-hashes",
        "--no-compile",
    ]
    command += [
        "--no-cache-dir",
        "--quiet",
        "--disable-pip-version-check",
        "--find-links",
        str(MOUNT / "wheels"),
    ]
    command += ["--requirement", str(MOUNT / "requirements.txt")]
    # Debian marks its Python as managed by apt, but the image is ours. Older pips ignore these variables.
    settings = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    pip = subprocess.run(command, env={**os.environ, **settings}, check=False)
    if pip.returncode != 0:
        sys.exit("pip could not install the wheels; it says why above.")


def copy_tree(source: Path, destination: Path) -> None:
    """Copy a file or folder; owned by root and readable for all, whatever it was on the controller."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copyfile(source, destination)
    else:
        shutil.copytree(source, destination, copy_function=shutil.copyfile, dirs_exist_ok=True)
    originals = [source, *source.rglob("*")] if source.is_dir() else [source]
    for original in originals:
        copied = destination / original.relative_to(source) if original != source else destination
        executable = original.is_dir() or original.stat().st_mode & 0o100
        copied.chmod(0o755 if executable else 0o644)


def compile_python(folder: Path) -> None:
    """Write byte code now, so that not every start of a container does it again.

    Its result is not looked at: packages carry files for other Python versions that don't compile here, and
    those are never imported.
    """
    compileall.compile_dir(str(folder), quiet=2, workers=0)


def main() -> None:
    """Do what /mnt/layer.json says."""
    layer = json.loads((MOUNT / "layer.json").read_text(encoding="utf-8"))
    if layer["wheels"]:
        install_wheels()
        compile_python(Path(sysconfig.get_path("purelib")))
    for each in layer["copy"]:
        destination = Path(each["dest"])
        copy_tree(MOUNT / "copy" / each["source"], destination)
        if destination.is_dir():
            compile_python(destination)


if __name__ == "__main__":
    main()
