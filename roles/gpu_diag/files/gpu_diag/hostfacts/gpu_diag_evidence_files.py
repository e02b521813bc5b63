"""Read what the probes left in the evidence folder: ``<evidence>/<kind>/<time>-<random>.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Json = dict[str, object]

KINDS = ("weights", "p2p", "integrity", "host", "control")
SCHEMA_VERSION = 1
# Marks of the watcher that revoke evidence about GPUs (see gpu_diag.suspicion).
SUSPECT_FOLDER = "suspect"
_LARGEST_DOCUMENT_BYTES = 64 * 1024 * 1024


def documents(evidence: str, kind: str, problems: list[str]) -> list[Json]:
    """All documents of a kind, the newest first; what can't be read becomes a sentence in ``problems``."""
    folder = Path(evidence) / kind
    try:
        paths = sorted(folder.glob("*.json"), key=lambda path: path.name, reverse=True)
    except OSError as error:
        problems.append(f"the evidence in {folder} can't be listed: {error.strerror}")
        return []
    return [document for path in paths if (document := _read(path, problems)) is not None]


def _read(path: Path, problems: list[str]) -> Json | None:
    try:
        if path.stat().st_size > _LARGEST_DOCUMENT_BYTES:
            problems.append(f"the evidence {path} is larger than any probe writes and was left out")
            return None
        document = json.loads(path.read_bytes())
    except OSError as error:
        problems.append(f"the evidence {path} can't be read: {error.strerror}")
        return None
    except (ValueError, RecursionError):
        problems.append(
            f"the evidence {path} is not JSON and was left out: remove it, the probe writes a new one"
        )
        return None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        problems.append(f"the evidence {path} has not the schema version {SCHEMA_VERSION} and was left out")
        return None
    return document


def newest_of_each(found: list[Json], subject: Callable[[Json], object]) -> list[Json]:
    """Of documents sorted with the newest first, the first of each subject."""
    newest: dict[object, Json] = {}
    for document in found:
        newest.setdefault(subject(document), document)
    return list(newest.values())


def model_of(document: Json) -> object:
    """The model folder that a weights document speaks of."""
    details = document.get("details")
    return details.get("model") if isinstance(details, dict) else None


def revoked_by(document: Mapping[str, object], marks: Iterable[Mapping[str, object]]) -> list[str]:
    """Sentences on why a document about GPUs is suspect: marks of its boot, on its GPUs, made after it."""
    identity = document.get("identity")
    if not isinstance(identity, Mapping):
        return []
    gpus = identity.get("gpus")
    addresses = {gpu.get("pci_address") for gpu in gpus} if isinstance(gpus, list) else set()
    return [
        str(mark.get("sentence"))
        for mark in marks
        if mark.get("boot_id") == identity.get("boot_id")
        and mark.get("pci_address") in addresses
        and str(mark.get("at")) > str(document.get("finished_at"))
    ]
