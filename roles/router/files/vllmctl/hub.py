"""Pulls a model by the means of the role model_files, under the operator's own rights.

Those means are modules of other roles; only the one file that the role router makes carries them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ansible.module_utils.box_tools_docker import Docker, DockerError
from ansible.module_utils.gpu_diag_weights_run import ProbeError, Setting, needs, verdicts
from ansible.module_utils.model_files_hub import Wanted, check_wanted, load_record
from ansible.module_utils.model_files_look import look
from ansible.module_utils.model_files_place import place
from ansible.module_utils.model_files_places import Places
from ansible.module_utils.model_files_progress import progress
from ansible.module_utils.model_files_rules import PackageError
from ansible.module_utils.model_files_run import Run

from vllmctl.box import Box
from vllmctl.errors import CommandError
from vllmctl.session import Json

Show = Callable[[str], None]

POLL_SECONDS = 1.0
SUDO = "run it with sudo (sudo --preserve-env=HF_TOKEN vllmctl pull ...)"


@dataclass(frozen=True)
class Order:
    """What to pull; an empty revision is the recorded one, or the hub's main one."""

    repository: str
    name: str
    revision: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class Settings:
    """What the deployment says about pulling; the same as the role model_files goes by. Times in seconds."""

    docker_host: str
    image: str
    models_root: str
    endpoint: str
    network: str
    environment: dict[str, str]
    ignore: list[str]
    xet: bool
    stall_seconds: int
    diagnostics: str
    evidence: str
    weights_timeout_seconds: int
    io_timeout_seconds: int


def read_settings(box: Box) -> Settings:
    """Read them; raises CommandError. The daemon that the docker command is aimed at goes before theirs."""
    said = box.pulling()
    missing = sorted({each.name for each in fields(Settings)} - said.keys())
    if missing:
        raise CommandError(f"{box.root / 'pull.json'} names no {missing[0]}; deploy again.")
    known = {each.name: said[each.name] for each in fields(Settings)}
    return Settings(**{**known, "docker_host": os.environ.get("DOCKER_HOST") or known["docker_host"]})


def fetch(box: Box, order: Order, show: Show) -> Json:
    """Have the model: download it, or what of it is wrong, prove it, put it in place. Raises CommandError."""
    settings = read_settings(box)
    try:
        return _fetch(settings, order, show)
    except (DockerError, PackageError, ProbeError) as error:
        sentence = " ".join(str(error).split())
        raise CommandError(sentence[:1].upper() + sentence[1:]) from None
    except PermissionError as error:
        raise CommandError(f"You may not use {error.filename}: {SUDO}.") from None
    except OSError as error:
        raise CommandError(f"{error.filename or settings.models_root}: {error.strerror}.") from None


def _fetch(settings: Settings, order: Order, show: Show) -> Json:
    wanted = Wanted(order.repository, order.revision, order.name, settings.endpoint)
    check_wanted(wanted)
    check_rights(settings, order.name)
    show("looking at what is there")
    places = Places(Path(settings.models_root), order.name)
    decision = look(places.root, wanted, rehash=False, check_mode=False)
    kept, done = ([], None) if decision.action == "nothing" else _bring(settings, order, decision, show)
    show("checking the weights in their place")
    verdict = _verdict(settings, places)
    if verdict["verdict"] == "failed":
        raise CommandError(f"The weights of {places.model} are wrong: {'; '.join(verdict['evidence'][:3])}.")
    record = load_record(places.record)
    return {
        "model": order.name,
        "folder": str(places.model),
        "repository": order.repository,
        "commit": record.commit if record else None,
        "action": decision.action,
        "done": done,
        "kept_aside": kept,
        **verdict,
    }


def _bring(settings: Settings, order: Order, decision: Any, show: Show) -> tuple[list[str], str]:
    """Download what is missing and put it in place; where damaged files are kept, and what was done."""
    job = {
        "repository": order.repository,
        "revision": decision.revision,
        "endpoint": settings.endpoint,
        "only": list(decision.only),
        "ignore": settings.ignore,
        "xet": settings.xet,
        "stall_seconds": settings.stall_seconds,
    }
    outcome = _download(settings, order, job, show)
    weights = None
    if decision.action == "pull":
        show("checking the weights")
        places = Places(Path(settings.models_root), order.name)
        weights = _verdict(settings, places, staged=str(places.arriving))
    asked = {"root": settings.models_root, "name": order.name, "outcome": outcome, "weights": weights}
    kept, done = place({**job, **asked})
    return kept, done


def _download(settings: Settings, order: Order, job: Json, show: Show) -> Json:
    run = Run(
        {
            "docker_host": settings.docker_host,
            "image": settings.image,
            "network": settings.network,
            "programs": _programs(),
            "root": settings.models_root,
            "name": order.name,
            "job": job,
            "environment": settings.environment,
            "token": order.token,
        }
    )
    run.start()
    began, first = time.monotonic(), 0
    while True:
        answer: Json = run.watch()
        if not answer["running"]:
            outcome: Json = answer["outcome"]
            return outcome
        status = answer["status"]
        if status and status["total_bytes"] and not first:
            first = status["done_bytes"]
        show(progress(status, time.monotonic() - began, first))
        time.sleep(POLL_SECONDS)


def _programs() -> dict[str, str]:
    """What the container runs that downloads."""
    found = resources.files("vllmctl").joinpath("programs").iterdir()
    return {each.name: each.read_text(encoding="utf-8") for each in found}


def _verdict(settings: Settings, places: Any, staged: str = "") -> Json:
    setting = Setting(
        docker_host=settings.docker_host,
        image=settings.image,
        evidence=settings.evidence,
        package=settings.diagnostics,
        rehash=False,
        timeout_seconds=settings.weights_timeout_seconds,
        io_timeout_seconds=settings.io_timeout_seconds,
        staged=staged,
    )
    (verdict,) = verdicts(needs([str(places.model)], setting), setting).values()
    return {"verdict": verdict["verdict"], "evidence": list(verdict["evidence"] or ())}


def check_rights(settings: Settings, name: str) -> None:
    """Raise CommandError where who runs this may not do what a pull takes, or the image isn't there."""
    docker = Docker(settings.docker_host)
    why = docker.unreachable()
    if why and "permission denied" in why.lower():
        raise CommandError(
            f"You may not use {docker.where}: {SUDO}, or have yourself put into the group docker "
            "(container_engine_operators)."
        )
    if why:
        raise CommandError(why)
    root = Path(settings.models_root)
    written = (".", ".pulled", ".verified", ".bad", ".pulling", f".pulling/{name}", name)
    for folder in (root / each for each in written):
        if not writable(folder):
            raise CommandError(f"You may not write into {folder}: {SUDO}.")
    if docker.image(settings.image) is None:
        raise CommandError(f"The image {settings.image} is not on this machine; deploy again.")


def writable(folder: Path) -> bool:
    """Whether who runs this may write into a folder, or may make it."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
