#!/usr/bin/env python3
"""Stands for the docker command where tests have no daemon: a container is a process of this machine.

Knows what a pull orders and nothing else. What the containers run, the download and the weights probe, is the
real thing; that it works in real ones is shown by tests/docker/hub. Everything that it was asked, and the
environment in which, is kept in the folder STANDIN_DOCKER.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

FOLDER = Path(os.environ["STANDIN_DOCKER"])
NO_IMAGE = "no-such-image"


def main(words: list[str]) -> int:
    """Carry out one docker command; returns its exit status."""
    with (FOLDER / "asked").open("a") as asked:
        asked.write(json.dumps({"words": words, "environment": dict(os.environ)}) + "\n")
    if words[:1] == ["--host"]:
        words = words[2:]
    match words:
        case ["version", *_]:
            print("27.0")
        case ["image", "inspect", *_] if words[-1] == NO_IMAGE:
            print(f"Error: No such image: {NO_IMAGE}", file=sys.stderr)
            return 1
        case ["image", "inspect", "--format", *_]:
            print("sha256:" + "0" * 64)
        case ["image", "inspect", *_]:
            print(json.dumps([{"Id": "sha256:" + "0" * 64}]))
        case ["container", "inspect", *_, name]:
            return inspect(name)
        case ["run", "--detach", *rest]:
            start(rest)
        case ["run", *rest]:
            return run(rest)
        case ["rm", "--force", name]:
            remove(name)
        case _:
            print(f"the stand-in knows no {words}", file=sys.stderr)
            return 125
    return 0


def values(words: list[str], option: str) -> list[str]:
    """The values of an option that may be given several times."""
    return [value for name, value in pairwise(words) if name == option]


def environment(words: list[str]) -> dict[str, str]:
    """Of the container, with a home of this machine."""
    given = dict(each.split("=", 1) for each in values(words, "--env"))
    return {"PATH": os.environ["PATH"], **given, "HOME": str(FOLDER)}


def after_image(words: list[str]) -> list[str]:
    """The arguments of the container's program, with this machine's paths for those of `--volume`."""
    arguments = words[words.index("--entrypoint") + 3 :]
    for volume in values(words, "--volume"):
        outside, _, inside = volume.partition(":")
        arguments = [
            outside + each.removeprefix(inside) if f"{each}/".startswith(f"{inside}/") else each
            for each in arguments
        ]
    return arguments


def start(words: list[str]) -> None:
    """A container in the background."""
    (name,), (label,) = values(words, "--name"), values(words, "--label")
    with (FOLDER / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *after_image(words)],
            env=environment(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    (FOLDER / name).write_text(json.dumps({"pid": process.pid, "label": label.split("=", 1)[1]}))


def run(words: list[str]) -> int:
    """A container in the foreground."""
    mounts = [
        dict(part.split("=", 1) for part in each.split(",") if "=" in part)
        for each in values(words, "--mount")
    ]
    (package,) = (each["source"] for each in mounts if each["target"] == "/gpu_diag_package")
    folders = [(each["source"], each["target"]) for each in mounts if each["source"] != package]
    with mounted([(source, target) for source, target in folders if source != target]):
        command = [sys.executable, *after_image(words)]
        return subprocess.run(
            command, env={**environment(words), "PYTHONPATH": package}, check=False
        ).returncode


@contextmanager
def mounted(folders: list[tuple[str, str]]) -> Iterator[None]:
    """Have folders under other names for a while."""
    for source, target in folders:
        Path(target).symlink_to(source)
    yield
    for _, target in folders:
        Path(target).unlink()


def inspect(name: str) -> int:
    """Whether a container runs, and its label."""
    try:
        state = json.loads((FOLDER / name).read_text())
    except OSError:
        return 1
    print("true" if is_running(state["pid"]) else "false", state["label"])
    return 0


def is_running(pid: int) -> bool:
    """One that has ended and that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def remove(name: str) -> None:
    """Running or not; one that isn't there is as good as removed."""
    with suppress(OSError):
        state = json.loads((FOLDER / name).read_text())
        (FOLDER / name).unlink()
        os.killpg(state["pid"], signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
