"""Decide which model folders need the weights probe, and run it inside the engine's image."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .gpu_diag_commands import bounded, run_bounded
from .gpu_diag_evidence_files import documents, model_of, newest_of_each
from .gpu_diag_weights_state import TooManyFilesError, file_states, why_not_current

Json = dict[str, object]

_DOCKER_SECONDS = 30.0
_FILE_SYSTEM_SECONDS = 60.0
_PACKAGE_IN_CONTAINER = "/gpu_diag_package"


class ProbeError(Exception):
    """The probe could not be run; the message is a sentence for people."""


@dataclass(frozen=True)
class Setting:
    """Where and how the probe runs."""

    docker_host: str
    image: str
    evidence: str
    package: str
    rehash: bool
    timeout_seconds: float
    io_timeout_seconds: int
    allow: Sequence[str] = ()
    # Where the files of the one folder lie until they are put in their place; empty: they are there.
    staged: str = ""
    docker: Sequence[str] = ("docker",)


@dataclass(frozen=True)
class Need:
    """A model folder, why it must be probed (no reason: it need not), and the newest document on it."""

    folder: str
    reasons: tuple[str, ...]
    document: Json | None


def needs(folders: Sequence[str], setting: Setting) -> list[Need]:
    """For each folder whether it must be probed. Reads evidence and file states, no file's content.

    Raises ProbeError where a file system does not answer.
    """
    found = documents(setting.evidence, "weights", [])
    newest = {str(model_of(document)): document for document in newest_of_each(found, model_of)}
    return [_need(os.path.normpath(Path(folder).absolute()), newest, setting) for folder in folders]


def _need(folder: str, newest: Mapping[str, Json], setting: Setting) -> Need:
    document = newest.get(folder)
    if document is None:
        return Need(folder, ("it was not probed yet",), None)
    if setting.rehash:
        return Need(folder, ("all of it is to be read again (gpu_diag_rehash)",), document)
    if _allowed(document) != sorted(set(setting.allow)):
        return Need(
            folder, ("other tensors may hold infinities or scales of zero (gpu_diag_allow)",), document
        )
    reasons = bounded(partial(_reasons, setting.staged or folder, document), _FILE_SYSTEM_SECONDS)
    if reasons is None:
        raise ProbeError(
            f"the file system of the model folder {folder} did not answer within {_FILE_SYSTEM_SECONDS:g} s: "
            "gpu_diag_models names it"
        )
    return Need(folder, tuple(reasons), document)


def _allowed(document: Json) -> list[str]:
    details = document.get("details")
    allowed = details.get("allowed") if isinstance(details, dict) else None
    return sorted(map(str, allowed)) if isinstance(allowed, list) else []


def _reasons(folder: str, document: Json) -> list[str]:
    try:
        return why_not_current(document, file_states(folder))
    except TooManyFilesError as error:
        return [str(error)]
    except OSError as error:
        return [f"the folder can't be read: {error.strerror}"]


def mounts(folder: str) -> list[str]:
    """Folders to mount so that a model folder and all that its links lead to has the same paths inside."""
    needed = {folder, str(Path(folder).resolve())}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            needed.add(str(path.resolve().parent))
    existing = [path for path in needed if Path(path).is_dir()]
    return sorted(path for path in existing if not _is_below_another(path, existing))


def _is_below_another(path: str, others: Sequence[str]) -> bool:
    return any(path != other and Path(path).is_relative_to(other) for other in others)


def container_name(folder: str, setting: Setting) -> str:
    """One name for each folder and evidence: Docker refuses a second probe of the same at once."""
    key = hashlib.sha256(f"{setting.evidence}\n{folder}".encode()).hexdigest()
    return f"vllm-frontdoor-probe-{key[:12]}"


def _docker(setting: Setting) -> list[str]:
    return [*setting.docker, *(["--host", setting.docker_host] if setting.docker_host else [])]


def command(folder: str, setting: Setting, image_id: str) -> list[str]:
    """The command that probes one folder: no network, nothing writable but the evidence."""
    evidence = str(Path(setting.evidence))
    volumes = [
        f"type=bind,source={setting.package},target={_PACKAGE_IN_CONTAINER},readonly",
        *_model_volumes(folder, setting),
        f"type=bind,source={evidence},target={evidence}",
    ]
    return [
        *_docker(setting), "run", "--rm", "--name", container_name(folder, setting),
        "--network", "none", "--read-only", "--cap-drop", "ALL",
        # Models may lie in folders that only their owner reads.
        "--cap-add", "DAC_READ_SEARCH", "--security-opt", "no-new-privileges:true", "--user", "0:0",
        "--label", "vllm-frontdoor.probe=weights",
        "--env", f"PYTHONPATH={_PACKAGE_IN_CONTAINER}", "--env", "PYTHONDONTWRITEBYTECODE=1",
        "--env", f"GPU_DIAG_IMAGE_DIGEST={image_id}",
        *(part for volume in volumes for part in ("--mount", volume)),
        "--entrypoint", "python3", image_id,
        "-m", "gpu_diag", "weights", "--json", "--evidence", evidence,
        "--io-timeout", str(setting.io_timeout_seconds), *(["--rehash"] if setting.rehash else []),
        *(f"--allow={pattern}" for pattern in setting.allow), "--", folder,
    ]  # fmt: skip


def _model_volumes(folder: str, setting: Setting) -> list[str]:
    if setting.staged:
        return [f"type=bind,source={setting.staged},target={folder},readonly"]
    return [f"type=bind,source={path},target={path},readonly" for path in mounts(folder)]


def image_id(setting: Setting) -> str:
    """The id of the image. Raises ProbeError where Docker or the image isn't there."""
    outcome = run_bounded(
        [*_docker(setting), "image", "inspect", "--format", "{{.Id}}", setting.image], _DOCKER_SECONDS
    )
    if outcome.problem is None:
        return outcome.stdout.strip()
    if "No such image" in outcome.problem:
        raise ProbeError(
            f"the image {setting.image} is not on this machine: it is set by gpu_diag_image, and the role "
            "engine_image brings it"
        )
    raise ProbeError(
        f"Docker can't be asked for the image {setting.image}: {outcome.problem} "
        "(the daemon's address is set by gpu_diag_docker_host)"
    )


def probe(folder: str, setting: Setting, image: str) -> Json:
    """Probe one folder; its evidence document. Raises ProbeError with a sentence where there is none."""
    if not Path(setting.staged or folder).is_dir():
        raise ProbeError(
            f"the model folder {setting.staged or folder} is not there: gpu_diag_models names it"
        )
    try:
        Path(setting.evidence).mkdir(parents=True, exist_ok=True)
        line = command(folder, setting, image)
    except OSError as error:
        raise ProbeError(f"{folder} or {setting.evidence} can't be used: {error.strerror}") from error
    outcome = run_bounded(line, setting.timeout_seconds)
    try:
        document = json.loads(outcome.stdout)
    except ValueError:
        document = None
    if isinstance(document, dict) and model_of(document) == folder:
        return document
    # A `docker run` that was given up leaves its container running.
    name = container_name(folder, setting)
    run_bounded([*_docker(setting), "rm", "--force", name], _DOCKER_SECONDS)
    raise ProbeError(
        f"the weights of {folder} could not be probed in the image {setting.image}: {outcome.problem}"
    )


def verdicts(found: Sequence[Need], setting: Setting, *, check_mode: bool = False) -> dict[str, Json | None]:
    """By model folder its verdict, class and evidence, probed where needed; in check mode None instead.

    Raises ProbeError.
    """
    probing = not check_mode and any(need.reasons for need in found)
    image = image_id(setting) if probing else ""
    results: dict[str, Json | None] = {}
    for need in found:
        if not need.reasons:
            results[need.folder] = _summary(need.document)
        else:
            results[need.folder] = None if check_mode else _summary(probe(need.folder, setting, image))
    return results


def _summary(document: Json | None) -> Json | None:
    return document and {key: document.get(key) for key in ("verdict", "class", "evidence")}
