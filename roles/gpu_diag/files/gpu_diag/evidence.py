"""The envelope of evidence: one JSON document for each probe, written so that a crash can't hide it.

A probe first leaves a *stage started* record, which is on the disk before anything risky happens. A record
that nobody holds any more tells of a probe that died: with another boot id, of a machine that died under it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from gpu_diag.hostfacts.gpu_diag_evidence_files import KINDS, SCHEMA_VERSION

Json = dict[str, object]

PATH_VERDICTS = ("clean", "corrupt", "hang", "inconclusive", "not_applicable")
WEIGHTS_VERDICTS = ("verified", "values_only", "structure_only", "unverified", "failed")
KEPT_DOCUMENTS_OF_EACH_KIND = 200
_STARTED = "started"


class EvidenceError(ValueError):
    """A document is not of the envelope's form, or can't be stored; the message is a sentence."""


@dataclass(frozen=True)
class Tool:
    """Which tool spoke: its name, its version, and the digest of the image it ran in, where known."""

    name: str
    version: str
    image_digest: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One probe's outcome. Times are ISO 8601 in UTC; ``class_`` is the document's ``class``."""

    tool: Tool
    started_at: str
    finished_at: str
    identity: Json
    verdict: str
    class_: str | None
    details: Json = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    remediation: tuple[str, ...] = ()

    def document(self) -> Json:
        """The JSON document."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {
                "name": self.tool.name,
                "version": self.tool.version,
                "image_digest": self.tool.image_digest,
            },
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "identity": self.identity,
            "verdict": self.verdict,
            "class": self.class_,
            "details": self.details,
            "evidence": list(self.evidence),
            "remediation": list(self.remediation),
        }


def json_schema() -> Json:
    """JSON Schema (draft 2020-12) of the document that every probe writes."""
    text = {"type": "string", "minLength": 1}
    sentences = {"type": "array", "items": text}
    tool = {"name": text, "version": text, "image_digest": {"type": ["string", "null"]}}
    properties: Json = {
        "schema_version": {"const": SCHEMA_VERSION},
        "tool": {
            "type": "object",
            "properties": tool,
            "required": list(tool),
            "additionalProperties": False,
        },
        "started_at": {"type": "string", "format": "date-time"},
        "finished_at": {"type": "string", "format": "date-time"},
        "identity": {"type": "object"},
        "verdict": {"enum": [*PATH_VERDICTS, *WEIGHTS_VERDICTS]},
        "class": {"type": ["string", "null"]},
        "details": {"type": "object"},
        "evidence": sentences,
        "remediation": sentences,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Evidence of vllm-frontdoor's gpu_diag",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def parse_evidence(document: Mapping[str, object]) -> Evidence:
    """The evidence in a document. Raises EvidenceError with a sentence where its form is another."""
    expected = set(Evidence(Tool("", ""), "", "", {}, "", None).document())
    if set(document) != expected:
        raise EvidenceError(f"evidence has the keys {sorted(expected)}, this has {sorted(document)}")
    if document["schema_version"] != SCHEMA_VERSION:
        raise EvidenceError(
            f"evidence has the schema version {SCHEMA_VERSION}, not {document['schema_version']}"
        )
    if document["verdict"] not in PATH_VERDICTS + WEIGHTS_VERDICTS:
        raise EvidenceError(f"there is no verdict {document['verdict']!r}")
    tool, class_ = _object(document, "tool"), document["class"]
    return Evidence(
        tool=Tool(str(tool.get("name")), str(tool.get("version")), _optional_text(tool.get("image_digest"))),
        started_at=str(document["started_at"]),
        finished_at=str(document["finished_at"]),
        identity=_object(document, "identity"),
        verdict=str(document["verdict"]),
        class_=_optional_text(class_),
        details=_object(document, "details"),
        evidence=_sentences(document, "evidence"),
        remediation=_sentences(document, "remediation"),
    )


def _object(document: Mapping[str, object], key: str) -> Json:
    value = document[key]
    if not isinstance(value, dict):
        raise EvidenceError(f"{key!r} of evidence is an object, not {type(value).__name__}")
    return value


def _sentences(document: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = document[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise EvidenceError(f"{key!r} of evidence is a list of sentences")
    return tuple(value)


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


def timestamp(moment: datetime) -> str:
    """A moment as it stands in documents: ISO 8601, UTC, microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Interrupted:
    """A probe that left its *stage started* record behind and no longer runs, and the boot it ran in."""

    kind: str
    stage: str
    subject: str
    identity: Json
    started_at: str
    same_boot: bool


class Run:
    """A probe under way: holds its *stage started* record until the evidence is on the disk."""

    def __init__(self, store: EvidenceStore, kind: str, record: Path, lock: IO[str]) -> None:
        self._store, self._kind, self._record, self._lock = store, kind, record, lock

    def enter(self, stage: str) -> None:
        """Another stage begins: on the disk before this returns."""
        with explained(self._store.folder):
            self._lock.write(json.dumps(stage) + "\n")
            self._lock.flush()
            os.fsync(self._lock.fileno())

    def finish(self, evidence: Evidence) -> Path:
        """Write the document, then drop the record; returns the document's path."""
        path = self._store.write(self._kind, evidence)
        self.abandon()
        return path

    def abandon(self) -> None:
        """Drop the record of a probe that ended in an orderly way without evidence."""
        self._record.unlink(missing_ok=True)
        self._lock.close()


class EvidenceStore:
    """The evidence folder: ``<folder>/<kind>/<time>-<random>.json`` and ``<folder>/started/*.json``.

    Methods raise EvidenceError with a sentence where the folder can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, kind: str, stage: str, subject: str, identity: Json, now: datetime) -> Run:
        """Leave the *stage started* record of a probe, on the disk before this returns."""
        record = {"kind": kind, "subject": subject, "identity": identity, "started_at": timestamp(now)}
        with explained(self.folder):
            folder = self.folder / _STARTED
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / _file_name(now)
            unnamed = path.with_suffix(".tmp")
            lock = unnamed.open("x")
            # Locked before it has its name: nobody can take it for the record of a dead probe.
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(f"{json.dumps(record)}\n{json.dumps(stage)}\n")
            lock.flush()
            os.fsync(lock.fileno())
            unnamed.rename(path)
            _sync_folder(folder)
        return Run(self, kind, path, lock)

    def interrupted(self, boot_id: str | None) -> list[Interrupted]:
        """Probes that died, each told once: its record is removed with this call."""
        found = []
        with explained(self.folder):
            for path in sorted((self.folder / _STARTED).glob("*.json")):
                told = _take_dead_record(path, boot_id)
                if told is not None:
                    found.append(told)
        return found

    def write(self, kind: str, evidence: Evidence) -> Path:
        """Write a document atomically and durably, and remove the oldest beyond 200 of its kind."""
        if kind not in KINDS:
            raise EvidenceError(f"there is no kind of evidence {kind!r}: the kinds are {', '.join(KINDS)}")
        folder = self.folder / kind
        with explained(self.folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / _file_name(datetime.fromisoformat(evidence.finished_at))
            write_atomically(path, json.dumps(evidence.document(), indent=1) + "\n")
            for old in sorted(folder.glob("*.json"))[:-KEPT_DOCUMENTS_OF_EACH_KIND]:
                old.unlink(missing_ok=True)
        return path


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turns the OSError of a folder that can't be used into a sentence (EvidenceError)."""
    try:
        yield
    except OSError as error:
        raise EvidenceError(
            f"the evidence folder {folder} can't be used ({error.strerror}): "
            "name one that can be written with --evidence, or leave the option out"
        ) from error


def _file_name(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}.json"


def _take_dead_record(path: Path, boot_id: str | None) -> Interrupted | None:
    """What a record tells, when no living process holds it; the record is then removed."""
    with contextlib.suppress(FileNotFoundError), path.open() as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        told = _parse_record(record.read(), boot_id)
        path.unlink(missing_ok=True)
        return told
    return None


def _parse_record(text: str, boot_id: str | None) -> Interrupted | None:
    lines = [value for line in text.splitlines() if (value := _json_or_none(line)) is not None]
    if not lines or not isinstance(lines[0], dict):
        return None  # the machine died while the record was written, before the probe began
    record, stage = lines[0], lines[-1] if len(lines) > 1 else "start"
    identity = record.get("identity")
    known = identity if isinstance(identity, dict) else {}
    return Interrupted(
        kind=str(record.get("kind")),
        stage=str(stage),
        subject=str(record.get("subject")),
        identity=known,
        started_at=str(record.get("started_at")),
        same_boot=known.get("boot_id") is not None and known.get("boot_id") == boot_id,
    )


def _json_or_none(line: str) -> object:
    try:
        value: object = json.loads(line)
    except ValueError:
        return None
    return value


def evidence_of(interrupted: Interrupted, now: datetime) -> Evidence:
    """What a probe that died says: the machine was reset under it, or (in the same boot) only the probe
    died."""
    what = f"The {interrupted.kind} probe that began at {interrupted.started_at} never ended"
    if interrupted.same_boot:
        verdict, class_, why = "inconclusive", "probe_died", "its process died."
    else:
        verdict, class_, why = "hang", "host_reset_during_probe", "the machine was reset under it."
    return Evidence(
        tool=Tool("journal", "1.0.0"),
        started_at=interrupted.started_at,
        finished_at=timestamp(now),
        identity=interrupted.identity,
        verdict=verdict,
        class_=class_,
        details={"subject": interrupted.subject, "stage": interrupted.stage},
        evidence=(f"{what} (during: {interrupted.stage}): {why}",),
        remediation=(
            "Keep the staged path (NCCL_P2P_DISABLE=1). Read the kernel log of that boot, then run the "
            "probe again.",
        ),
    )


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole: readers see the old or the new one, and a power cut leaves one of them."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
