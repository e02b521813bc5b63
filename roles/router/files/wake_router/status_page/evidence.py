"""What the diagnostics left on the box, in the form that operators look at.

The documents are written by another role (`gpu_diag`) as `<folder>/<kind>/<time>-<random>.json` and never
change once written; marks below `<folder>/suspect` revoke what was proven on a GPU before them, in the same
boot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from wake_router.clock import Clock

PATH_KINDS: Final = ("p2p", "integrity")
BAD_VERDICTS: Final = frozenset({"corrupt", "hang", "failed"})
SCHEMA_VERSION: Final = 1
LARGEST_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

Json = dict[str, Any]


class Pair(BaseModel):
    """The verdict on copies from one GPU to another, by their places in the list of devices."""

    source: int
    destination: int
    verdict: str


class CondemnedDevice(BaseModel):
    """A GPU that a probe found bad by itself, with what it found. `device` is its key in the registry, where
    the probe knows it; `number` its place among the GPUs, from 0.
    """

    device: str | None
    number: int
    name: str
    verdict: str
    faults: list[str]


class PathEvidence(BaseModel):
    """The newest record of a probe of the GPUs. `suspicions` are sentences that revoke it."""

    kind: str
    verdict: str
    finished_at: str
    age_seconds: float
    of_this_boot: bool
    devices: list[str]
    pairs: list[Pair]
    sentences: list[str]
    suspicions: list[str]
    condemned: list[CondemnedDevice] = []


class WeightsEvidence(BaseModel):
    """The newest record about one model's folder."""

    model: str
    verdict: str
    finished_at: str
    age_seconds: float


class EvidenceView(BaseModel):
    """Answer of `GET /admin/evidence`. `present` is false where there is no folder."""

    schema_version: Literal[1] = 1
    present: bool
    paths: list[PathEvidence]
    weights: list[WeightsEvidence]
    problems: list[str]


class EvidenceReader:
    """Reads the folder, each document once. Blocks: call it in a thread."""

    def __init__(self, folder: Path, boot_id_file: Path = _BOOT_ID) -> None:
        self._folder = folder
        self._boot_id_file = boot_id_file
        self._known: dict[Path, Json] = {}
        self._seen: dict[Path, Json] = {}

    def read(self, now: float) -> EvidenceView:
        """What is there; `now` is wall-clock time in seconds."""
        if not self._folder.is_dir():
            return EvidenceView(present=False, paths=[], weights=[], problems=[])
        problems: list[str] = []
        self._seen = {}
        marks = [mark for _, mark in self._documents(self._folder / "suspect", problems)]
        boot_id = _text(self._boot_id_file)
        paths = []
        for kind in PATH_KINDS:
            newest = next(self._documents(self._folder / kind, problems), None)
            paths += [_path_evidence(kind, newest[1], marks, boot_id, now)] if newest else []
        found = [document for _, document in self._documents(self._folder / "weights", problems)]
        self._known = self._seen
        return EvidenceView(present=True, paths=paths, weights=_weights(found, now), problems=problems)

    def _documents(self, folder: Path, problems: list[str]) -> Iterator[tuple[Path, Json]]:
        """Documents of a folder, the newest first; what can't be read becomes a sentence."""
        try:
            names = sorted(folder.glob("*.json"), reverse=True)
        except OSError as error:
            problems.append(f"The evidence in {folder} can't be listed: {error.strerror}.")
            return
        for path in names:
            document = self._known.get(path) or _read(path, problems)
            if document is not None:
                self._seen[path] = document
                yield path, document


class EvidenceWatch:
    """The evidence as it was last read; reading happens outside the event loop."""

    def __init__(self, reader: EvidenceReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self.latest = EvidenceView(present=False, paths=[], weights=[], problems=[])

    async def refresh(self) -> EvidenceView:
        """Read again, and return what was found."""
        async with self._one_at_a_time:
            self.latest = await asyncio.to_thread(self._reader.read, self._clock.wall())
        return self.latest


def _read(path: Path, problems: list[str]) -> Json | None:
    try:
        if path.stat().st_size > LARGEST_DOCUMENT_BYTES:
            problems.append(f"The evidence {path.name} is larger than any probe writes and was left out.")
            return None
        document = json.loads(path.read_bytes())
    except OSError as error:
        problems.append(f"The evidence {path.name} can't be read: {error.strerror}.")
        return None
    except (ValueError, RecursionError):
        problems.append(f"The evidence {path.name} is not JSON: remove it, the probe writes a new one.")
        return None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        problems.append(f"The evidence {path.name} has not the schema version {SCHEMA_VERSION}.")
        return None
    return _trimmed(document)


def _trimmed(document: Json) -> Json:
    """Without the list of files, which is long and isn't shown."""
    details = document.get("details")
    if isinstance(details, dict):
        kept = {key: details[key] for key in ("model", "devices", "pairs") if key in details}
        document = {**document, "details": kept}
    return document


def _path_evidence(
    kind: str, document: Json, marks: Iterable[Json], boot_id: str | None, now: float
) -> PathEvidence:
    details, identity = _object(document, "details"), _object(document, "identity")
    finished = str(document.get("finished_at"))
    return PathEvidence(
        kind=kind,
        verdict=str(document.get("verdict")),
        finished_at=finished,
        age_seconds=_age(finished, now),
        of_this_boot=identity.get("boot_id") == boot_id,
        devices=[_device(device) for device in _objects(details, "devices")],
        pairs=[
            Pair(
                source=int(pair["source"]), destination=int(pair["destination"]), verdict=str(pair["verdict"])
            )
            for pair in _objects(details, "pairs")
            if {"source", "destination", "verdict"} <= pair.keys()
        ],
        sentences=[str(sentence) for sentence in document.get("evidence") or []],
        suspicions=_suspicions(document, identity, marks),
        condemned=list(_condemned(details, document.get("evidence") or [])),
    )


def _condemned(details: Json, sentences: Iterable[Any]) -> Iterator[CondemnedDevice]:
    """The probe of each GPU by itself has a verdict on each; its sentences begin with the GPU's place."""
    told = [str(sentence) for sentence in sentences]
    for place, device in enumerate(_objects(details, "devices")):
        if device.get("verdict") in BAD_VERDICTS:
            name, uuid = str(device.get("name", "GPU")), device.get("uuid")
            start = f"GPU {place} ({name}): "
            yield CondemnedDevice(
                device=None if uuid is None else str(uuid),
                number=place,
                name=name,
                verdict=str(device["verdict"]),
                faults=[sentence.removeprefix(start) for sentence in told if sentence.startswith(start)],
            )


def _device(device: Json) -> str:
    return f"{device.get('name', 'GPU')} {device.get('pci_address') or ''}".strip()


def _suspicions(document: Json, identity: Json, marks: Iterable[Json]) -> list[str]:
    addresses = {gpu.get("pci_address") for gpu in _objects(identity, "gpus")}
    return [
        str(mark.get("sentence"))
        for mark in marks
        if mark.get("boot_id") == identity.get("boot_id")
        and mark.get("pci_address") in addresses
        and str(mark.get("at")) > str(document.get("finished_at"))
    ]


def _weights(documents: Iterable[Json], now: float) -> list[WeightsEvidence]:
    newest: dict[str, WeightsEvidence] = {}
    for document in documents:
        model, finished = str(_object(document, "details").get("model")), str(document.get("finished_at"))
        evidence = WeightsEvidence(
            model=model,
            verdict=str(document.get("verdict")),
            finished_at=finished,
            age_seconds=_age(finished, now),
        )
        newest.setdefault(model, evidence)
    return sorted(newest.values(), key=lambda each: each.model)


def _age(moment: str, now: float) -> float:
    """Seconds since an ISO 8601 moment; what has no readable date is as old as can be."""
    try:
        return max(0.0, round(now - datetime.fromisoformat(moment).timestamp(), 1))
    except ValueError:
        return now


def _object(document: Json, key: str) -> Json:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _objects(document: Json, key: str) -> list[Json]:
    value = document.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
