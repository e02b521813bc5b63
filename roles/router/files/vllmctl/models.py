"""The models on this machine's disk, for `vllmctl list`, and who serves them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllmctl.containers import MODEL_MOUNTS, Container

Mount = tuple[str, str, str]
"""Service, target in its container, and source on the machine."""

_SERVICE = re.compile(r"  (\S+):")
_SOURCE = re.compile(r" +source: (.+)")
_TARGET = re.compile(r" +target: (.+)")
_LONG_CHARACTER = re.compile(r"\\U([0-9a-f]{8})")


@dataclass(frozen=True)
class Model:
    """One model's folder: its size in bytes, the verdict on its weights, who serves it (None: unknown)."""

    name: str
    path: str
    size_bytes: int
    verdict: str | None
    services: tuple[str, ...] | None


@dataclass(frozen=True)
class Serving:
    """Who serves a folder, by its path. `by_name`: services of which only the model's name is known, which is
    the folder's name where nobody gave it another. Unless `complete`, others may be served, too.
    """

    by_path: Mapping[str, frozenset[str]]
    by_name: Mapping[str, frozenset[str]]
    complete: bool

    def services(self, path: str) -> tuple[str, ...] | None:
        """Names of the services; None: not known."""
        nobody: frozenset[str] = frozenset()
        found = self.by_path.get(path, nobody) | self.by_name.get(Path(path).name, nobody)
        return tuple(sorted(found)) if found or self.complete else None


def serving(
    containers: Iterable[Container], deployed: Sequence[Mount] | None, status: Mapping[str, Any] | None
) -> Serving:
    """From the containers, from what was deployed (see `deployed_mounts`), and from the router's status; the
    latter two None where they can't be had. The router knows no folders: it counts only without the mounts.
    """
    containers = list(containers)
    by_path: dict[str, set[str]] = {}
    mounts = ((each.service, target, source) for each in containers for target, source in each.binds.items())
    for service, target, source in (*mounts, *(deployed or ())):
        if target.startswith(MODEL_MOUNTS):
            by_path.setdefault(source, set()).add(service)
    by_name: dict[str, set[str]] = {}
    for each in status["services"] if status is not None and deployed is None else ():
        by_name.setdefault(str(each["model"]), set()).add(str(each["name"]))
    complete = bool(containers) or deployed is not None
    return Serving(
        {path: frozenset(names) for path, names in by_path.items()},
        {name: frozenset(names) for name, names in by_name.items()},
        complete,
    )


def deployed_mounts(compose: str) -> Iterator[Mount]:
    """Every mount in a Compose file as the deployment writes it: a line per value, services two spaces deep,
    and a mount's source before its target. Raises ValueError for a text that isn't quoted as it should be.
    """
    service = source = ""
    for line in compose.splitlines():
        if named := _SERVICE.fullmatch(line):
            service = _text(named[1])
        elif mounted := _SOURCE.fullmatch(line):
            source = _text(mounted[1])
        elif target := _TARGET.fullmatch(line):
            yield service, _text(target[1]), source


def _text(written: str) -> str:
    """A value of the file: plain, or quoted as in JSON; Compose has `$$` for a dollar sign."""
    if written.startswith('"'):
        written = json.loads(_LONG_CHARACTER.sub(lambda found: chr(int(found[1], 16)), written))
    return written.replace("$$", "$")


def models(folder: Path, verdicts: Mapping[str, str], known: Serving) -> list[Model]:
    """Models below the folder, and those elsewhere that are served."""
    below = {str(path) for path in folder.glob("*") if path.is_dir() and not path.name.startswith(".")}
    return [
        Model(Path(path).name, path, _size(Path(path)), verdicts.get(path), known.services(path))
        for path in sorted(below | set(known.by_path))
    ]


def _size(folder: Path) -> int:
    """Bytes of the files in it; links are followed, since caches keep models behind links."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # a link to nothing, or a file that is just being replaced
    return total
