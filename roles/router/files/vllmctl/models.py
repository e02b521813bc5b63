"""The models on this machine's disk, for `vllmctl list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllmctl.containers import MODEL_MOUNTS, Container


@dataclass(frozen=True)
class Model:
    """One model's folder: its size in bytes, the verdict on its weights, and who serves it."""

    name: str
    path: str
    size_bytes: int
    verdict: str | None
    services: tuple[str, ...]


def models(folder: Path, verdicts: Mapping[str, str], found: Iterable[Container]) -> list[Model]:
    """Models below the folder, and those elsewhere that a container mounts."""
    served: dict[str, list[str]] = {}
    for container in found:
        for target, source in container.binds.items():
            if target.startswith(MODEL_MOUNTS):
                served.setdefault(source, []).append(container.service)
    below = {str(path) for path in folder.glob("*") if path.is_dir() and not path.name.startswith(".")}
    return [
        Model(
            Path(path).name, path, _size(Path(path)), verdicts.get(path), tuple(sorted(served.get(path, [])))
        )
        for path in sorted(below | set(served))
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
