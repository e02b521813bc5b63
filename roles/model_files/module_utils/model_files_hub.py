"""Models from a hub: what may be asked for, what is known of one that is there, what is to be done (pure)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.model_files_rules import PackageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_LONGEST_REPOSITORY = 96  # huggingface_hub 2.4.0, validate_repo_id
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,250}")
DEFAULT_REVISION = "main"


@dataclass(frozen=True)
class Wanted:
    """A model as a person asks for it; an empty revision is the recorded one, or the hub's main one."""

    repository: str
    revision: str
    name: str
    endpoint: str


@dataclass(frozen=True)
class Record:
    """A model that was pulled: from where, at which commit, and the SHA-256 of each of its files."""

    repository: str
    revision: str
    commit: str
    endpoint: str
    files: dict[str, str]


@dataclass(frozen=True)
class Decision:
    """What to do: ``nothing``, ``pull`` all, or ``repair`` the files in `only` out of the same commit."""

    action: str
    revision: str
    only: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def check_wanted(wanted: Wanted) -> None:
    """Raise PackageError when a model is asked for wrongly."""
    if not wanted.repository:
        raise PackageError("Say which model: ./box pull OWNER/NAME (model_files_repository).")
    if (
        not _REPOSITORY.fullmatch(wanted.repository)
        or ".." in wanted.repository
        or len(wanted.repository) > _LONGEST_REPOSITORY
    ):
        raise PackageError(
            f"'{wanted.repository[:120]}' is no name of a repository (model_files_repository); write it as "
            "OWNER/NAME."
        )
    if not _NAME.fullmatch(wanted.name) or ".." in wanted.name:
        raise PackageError(
            f"'{wanted.name[:120]}' is no name for the model's folder (model_files_name), which needs a "
            "plain name of letters, digits, dots, dashes and underscores that begins with a letter or digit."
        )
    if wanted.revision and (not _REVISION.fullmatch(wanted.revision) or ".." in wanted.revision):
        raise PackageError(
            f"'{wanted.revision[:120]}' is no revision (model_files_revision); write a branch, a tag or a "
            "commit."
        )
    if wanted.endpoint and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", wanted.endpoint):
        raise PackageError(
            f"model_files_hub_endpoint is '{wanted.endpoint[:120]}'; write the hub's address as "
            "https://HOST, "
            "without a user or a password in it, or leave it empty for the client's own."
        )


def decide(
    wanted: Wanted, *, folder: Path, is_there: bool, record: Record | None, wrong: Mapping[str, str]
) -> Decision:
    """What it takes to have the model. Raises PackageError where something else is in its place."""
    if not is_there:
        revision = wanted.revision or DEFAULT_REVISION
        return Decision("pull", revision, changes=(f"model {wanted.name}: not there, pulled",))
    if record is None:
        raise PackageError(
            f"The folder {folder} is there and was not put there by a pull, so it is left alone; choose "
            "another name (model_files_name), or move the folder away."
        )
    if record.repository != wanted.repository:
        raise PackageError(
            f"The folder {folder} holds {record.repository}, not {wanted.repository}; choose another "
            "name (model_files_name), or move the folder away."
        )
    if wanted.revision not in ("", record.revision, record.commit):
        raise PackageError(
            f"The folder {folder} holds {record.repository} at {record.commit} (revision "
            f"'{record.revision}'), "
            f"not at '{wanted.revision}'; a model that may be in use is not replaced: choose another "
            "name (model_files_name), or move the folder away."
        )
    if not wrong:
        return Decision("nothing", record.commit)
    changes = tuple(f"model {wanted.name}: {path} {why}, fetched anew" for path, why in sorted(wrong.items()))
    return Decision("repair", record.commit, tuple(sorted(wrong)), changes)


def check_outcome(outcome: Mapping[str, Any], record: Record | None) -> None:
    """Raise PackageError where a file that was fetched anew isn't the one that had been recorded."""
    for path, sha256 in outcome["files"].items():
        if record is not None and record.files.get(path) != sha256:
            raise PackageError(
                f"The hub now gives another {path} for {record.repository} at {record.commit} than "
                "when it was pulled (its sha256 differs); nothing was replaced. Pull it under another name "
                "(model_files_name)."
            )


def job_digest(job: Mapping[str, Any]) -> str:
    """Tells one pull from another; the token is no part of it."""
    kept = {name: value for name, value in job.items() if name not in ("token", "environment")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def load_record(path: Path) -> Record | None:
    """What was recorded of a model; None when it was not pulled, or when the record can't be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{name: document[name] for name in Record.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_document(record: Record) -> dict[str, Any]:
    """A record as it is written."""
    return asdict(record)


def failed_weights(verdict: Mapping[str, Any] | None, repository: str) -> str | None:
    """Why a verdict on the weights forbids to put a model in place, as a sentence; None when it does not."""
    if verdict is None or verdict.get("verdict") != "failed":
        return None
    said: Sequence[str] = verdict.get("evidence") or []
    return (
        f"The model {repository} arrived as the hub has it, but its weights are wrong: "
        f"{'; '.join(said[:3])}. It "
        "was published so; it is not put in place."
    )
