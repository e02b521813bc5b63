"""Decide which probes of GPUs are missing, stale or suspect, and run them inside the engine's image."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .gpu_diag_box import Question, discover
from .gpu_diag_commands import run_bounded
from .gpu_diag_evidence_files import revoked_by
from .gpu_diag_identity import differences, identity_of
from .gpu_diag_weights_run import ProbeError

Json = dict[str, object]

_DOCKER_SECONDS = 30.0
_PACKAGE_IN_CONTAINER = "/gpu_diag_package"
PROBES = ("host", "integrity", "control", "p2p")
# Each probe's own limits lie well below: this one is for a Docker that hangs.
_PROBE_SECONDS = 3600.0


@dataclass(frozen=True)
class Setting:
    """Where and how the probes run. ``cpu_devices`` above 0: shares of the processor instead of GPUs."""

    docker_host: str
    image: str
    evidence: str
    package: str
    cpu_devices: int
    force: bool
    docker: Sequence[str] = ("docker",)


@dataclass(frozen=True)
class Present:
    """The box as it is now: identity, evidence by kind (the newest first), and marks of suspicion."""

    identity: Json
    evidence: Mapping[str, Sequence[Json]]
    marks: Sequence[Json]


def look(setting: Setting) -> Present:
    """Discover the box and read its evidence."""
    box = discover(Question(evidence=setting.evidence, docker_host=setting.docker_host))
    evidence, marks = box["evidence"], box["suspicions"]
    return Present(
        identity=identity_of(box),
        evidence=evidence if isinstance(evidence, dict) else {},
        marks=marks if isinstance(marks, list) else [],
    )


def why_needed(probe: str, present: Present, force: bool) -> list[str]:
    """Sentences on why a probe must run; none where its newest evidence holds."""
    found = present.evidence.get(probe, ())
    if not found:
        return ["it was not run yet"]
    if force:
        return ["it was asked for (gpu_diag_force)"]
    recorded = found[0].get("identity")
    stale = (
        differences(recorded, present.identity) if isinstance(recorded, dict) else ["its machine is unknown"]
    )
    return stale or revoked_by(found[0], present.marks)


def command(probe: str, setting: Setting, identity: Json, image_id: str) -> list[str]:
    """The command of a probe: on the host for the host's own evidence, else in a container."""
    probing = ["p2p", "--control"] if probe == "control" else [probe]
    arguments = ["-m", "gpu_diag", *probing, "--json", "--evidence", setting.evidence]
    if probe == "host":
        return [
            "env",
            f"PYTHONPATH={setting.package}",
            "PYTHONDONTWRITEBYTECODE=1",
            sys.executable,
            *arguments,
        ]
    devices = ["--cpu", str(setting.cpu_devices)] if setting.cpu_devices else []
    return [
        *_docker(setting), "run", "--rm", "--name", container_name(probe, setting), "--network", "none",
        "--read-only", "--tmpfs", "/tmp", "--security-opt", "no-new-privileges:true", "--user", "0:0",
        "--label", f"vllm-frontdoor.probe={probe}",
        *([] if setting.cpu_devices else ["--gpus", "all"]),
        "--env", f"PYTHONPATH={_PACKAGE_IN_CONTAINER}", "--env", "PYTHONDONTWRITEBYTECODE=1",
        "--env", f"GPU_DIAG_IMAGE_DIGEST={image_id}", "--env", f"GPU_DIAG_IDENTITY={json.dumps(identity)}",
        "--mount", f"type=bind,source={setting.package},target={_PACKAGE_IN_CONTAINER},readonly",
        "--mount", f"type=bind,source={setting.evidence},target={setting.evidence}",
        "--entrypoint", "python3", image_id, *arguments, *devices,
    ]  # fmt: skip


def container_name(probe: str, setting: Setting) -> str:
    """All instances share the GPUs: Docker refuses a second probe of the same kind at once."""
    return f"vllm-frontdoor-probe-{probe}"


def _docker(setting: Setting) -> list[str]:
    return [*setting.docker, *(["--host", setting.docker_host] if setting.docker_host else [])]


def run_probe(probe: str, setting: Setting, identity: Json, image_id: str) -> Json:
    """Run a probe; its evidence document. Raises ProbeError with a sentence where there is none."""
    try:
        Path(setting.evidence).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProbeError(f"the evidence folder {setting.evidence} can't be made: {error.strerror}") from error
    outcome = run_bounded(command(probe, setting, identity, image_id), _PROBE_SECONDS)
    try:
        document = json.loads(outcome.stdout)
    except ValueError:
        document = None
    if isinstance(document, dict) and "verdict" in document:
        return document
    if probe != "host":
        # A `docker run` that was given up leaves its container running.
        name = container_name(probe, setting)
        run_bounded([*_docker(setting), "rm", "--force", name], _DOCKER_SECONDS)
    raise ProbeError(f"the probe {probe} could not be run in the image {setting.image}: {outcome.problem}")
