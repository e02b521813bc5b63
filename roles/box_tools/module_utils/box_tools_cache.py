"""A cache of wheels on the controller: what is asked for is looked up, and fetched with pip when missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.box_tools_docker import last_lines
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.box_tools_lock import Pin, manylinux_platforms, may_be_wheel_of

_DOWNLOAD_SECONDS = 3600.0
_NOT_FOUND = ("No matching distribution found", "Could not find a version")


class WheelError(RuntimeError):
    """Wheels that can't be had; the text is a sentence for people."""


@dataclass(frozen=True)
class Target:
    """What the wheels are for: a CPython ("3.11"), a machine ("x86_64") and its glibc's minor version."""

    python: str
    machine: str
    glibc_minor: int

    @property
    def folder(self) -> str:
        """Where in the cache its wheels lie: wheels for different Pythons must not be mixed up."""
        return f"cp{self.python.replace('.', '')}-{self.machine}"

    def pip_options(self) -> list[str]:
        """Options that make ``pip download`` choose for this target instead of for the controller."""
        platforms = manylinux_platforms(self.machine, self.glibc_minor)
        return [
            "--python-version",
            self.python,
            *(part for each in platforms for part in ("--platform", each)),
        ]


def find(pins: Sequence[Pin], folder: Path) -> tuple[dict[Pin, Path], list[Pin]]:
    """Which wheel in `folder` answers each pin, verified by its hash, and which pins none answers."""
    names = sorted(path.name for path in folder.glob("*.whl")) if folder.is_dir() else []
    found: dict[Pin, Path] = {}
    for pin in pins:
        candidates = (folder / name for name in names if may_be_wheel_of(pin, name))
        match = next((path for path in candidates if sha256_of(path) in pin.hashes), None)
        if match is not None:
            found[pin] = match
    return found, [pin for pin in pins if pin not in found]


def fetch(pins: Sequence[Pin], folder: Path, target: Target, fallback_index: str) -> None:
    """Fetch wheels into `folder` with this Python's own pip, under the user's own pip settings.

    A variant such as ``2.13.0+cpu`` that pip doesn't find where it is set up to look is asked for again with
    `fallback_index` beside that. Raises WheelError.
    """
    ordinary = [pin for pin in pins if not pin.has_local_version]
    variants = [pin for pin in pins if pin.has_local_version]
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
        if ordinary:
            _download(ordinary, Path(partial), target, [])
        if variants:
            _download_variants(variants, Path(partial), target, fallback_index)
        for wheel in Path(partial).glob("*.whl"):
            wheel.chmod(0o644)
            wheel.replace(folder / wheel.name)


def _download_variants(pins: Sequence[Pin], folder: Path, target: Target, fallback_index: str) -> None:
    try:
        _download(pins, folder, target, [])
    except WheelError as error:
        if not fallback_index or not any(sign in str(error) for sign in _NOT_FOUND):
            raise
        _download(pins, folder, target, ["--extra-index-url", fallback_index])


def _download(pins: Sequence[Pin], folder: Path, target: Target, options: Sequence[str]) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", *target.pip_options(), *options]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    names = ", ".join(pin.name for pin in pins[:3]) + (", …" if len(pins) > 3 else "")
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise WheelError(
            f"Downloading {names} did not end within {_DOWNLOAD_SECONDS:.0f} s; is the network slow?"
        ) from None
    if answer.returncode != 0:
        raise WheelError(_why_not(names, answer.stdout + "\n" + answer.stderr))


def _why_not(names: str, output: str) -> str:
    if "No module named pip" in output:
        remedy = "make its virtual environment with 'python3 -m venv'."
        return f"{sys.executable}, which runs Ansible, has no pip; {remedy}"
    errors = [line for line in output.splitlines() if line.startswith("ERROR:") or "HASH" in line.upper()]
    said = last_lines("\n".join(line[:400] for line in errors) or output, 6)
    return (
        f"Downloading {len(names.split(', '))} or more wheels ({names}) failed. Is the package index "
        "reachable from the "
        "controller (pip's own settings and proxies are used), and is the lock still right? pip "
        f"said:\n{said}"
    )


def writable(folder: Path) -> bool:
    """Whether `folder` can be written, or made."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    return os.access(existing, os.W_OK)
