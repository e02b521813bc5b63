#!/usr/bin/env python3
"""Clears the engines of an instance for this boot: looks for evidence of it, and tests what is missing.

Runs on the host, as a unit at each boot and when a playbook deploys; engines' launchers wait for what it
writes. A test is bounded: what doesn't end in time is not cleared. Standard library and the installed package
gpu_diag only; Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 1
EXIT_NOT_CLEARED = 1
EXIT_COULD_NOT_RUN = 3
REMOVE_SECONDS = 10.0
CONTROL_FAILED = ("control_failed", "control_hang")


# ---------------------------------------------------------------------------------------- what decides


def current(
    documents: Sequence[Mapping[str, Any]],
    identity: Mapping[str, Any],
    marks: Sequence[Mapping[str, Any]],
    differences: Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[str]],
    revoked_by: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], Sequence[str]],
) -> Mapping[str, Any] | None:
    """The newest document, where it speaks of the machine as it is now."""
    if not documents:
        return None
    newest = documents[0]
    recorded = newest.get("identity")
    if not isinstance(recorded, Mapping) or differences(recorded, identity) or revoked_by(newest, marks):
        return None
    return newest


def refused_devices(integrity: Mapping[str, Any] | None, why_missing: str) -> dict[str, str]:
    """Devices that are not cleared, by key (a GPU's UUID, `cpu`, or `all`), and why."""
    if integrity is None:
        return {"all": why_missing}
    details = integrity.get("details")
    devices = details.get("devices") if isinstance(details, Mapping) else None
    on_cpu = isinstance(details, Mapping) and details.get("kind") == "cpu"
    if not isinstance(devices, list) or not devices:
        return {"all": f"the integrity test of {integrity.get('finished_at')} names no device"}
    refused: dict[str, str] = {}
    for device in devices:
        verdict = device.get("verdict")
        if verdict != "clean":
            key = "cpu" if on_cpu else str(device.get("uuid") or "all")
            refused[key] = f"the integrity test of {integrity.get('finished_at')} says {verdict}"
    return refused


def control_problem(control: Mapping[str, Any] | None, why_missing: str) -> str | None:
    """Why split models may not start; None where the control arm is clean."""
    if control is None:
        return why_missing
    details = control.get("details")
    words = details.get("control_words") if isinstance(details, Mapping) else None
    clean = (
        control.get("class") not in CONTROL_FAILED
        and control.get("verdict") in ("clean", "corrupt", "hang", "not_applicable")
        and isinstance(words, int)
        and words > 0
    )
    return None if clean else f"the control arm of {control.get('finished_at')} is not clean"


def clearance(boot_id: str, refused: Mapping[str, str], control: str | None) -> Json:
    """The document that launchers wait for."""
    return {
        "schema_version": SCHEMA_VERSION,
        "boot_id": boot_id,
        "refused": dict(sorted(refused.items())),
        "control": control,
    }


def probe_command(kind: str, config: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """The command that runs a short probe in the engine's image; its document is what it prints."""
    probing = ["integrity", "--stress", "0"] if kind == "integrity" else ["p2p", "--control"]
    shares = int(config["cpu_devices"])
    return [
        *("docker", "--host", config["docker_host"], "run", "--rm", "--name", container_name(kind, config)),
        *("--pull", "never", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--user", "0:0"),
        *("--security-opt", "no-new-privileges:true", *(() if shares else ("--gpus", "all"))),
        *("--env", "PYTHONPATH=/gpu_diag_package", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *("--env", f"GPU_DIAG_IMAGE_DIGEST={config['image']}"),
        *("--env", f"GPU_DIAG_IDENTITY={json.dumps(identity)}"),
        *("--mount", f"type=bind,source={config['package']},target=/gpu_diag_package,readonly"),
        *("--mount", f"type=bind,source={config['evidence']},target={config['evidence']}"),
        *("--entrypoint", "python3", config["image"], "-m", "gpu_diag", *probing, "--json"),
        *("--evidence", config["evidence"], *(("--cpu", str(shares)) if shares else ())),
    ]


def container_name(kind: str, config: Mapping[str, Any]) -> str:
    """Name of the probe's container."""
    return f"vllm-frontdoor-{config['instance']}-clearance-{kind}"


# ------------------------------------------------------------------------------------ what touches the world


def run_probe(
    kind: str, config: Mapping[str, Any], identity: Mapping[str, Any], seconds: float
) -> Json | str:
    """A probe's document, or a sentence on why there is none."""
    try:
        done = subprocess.run(
            probe_command(kind, config, identity),
            capture_output=True,
            text=True,
            timeout=max(1.0, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired:
        remove(kind, config)
        return f"the {kind} test did not end in time"
    except OSError as error:
        return f"docker can't be run: {error.strerror}"
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if isinstance(document, dict) and "verdict" in document:
        return document
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
    return f"the {kind} test could not be run: {said}"


def remove(kind: str, config: Mapping[str, Any]) -> None:
    """A `docker run` that was given up leaves its container running."""
    command = ["docker", "--host", config["docker_host"], "rm", "--force", container_name(kind, config)]
    try:
        subprocess.run(command, capture_output=True, timeout=REMOVE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"clearance: the container of the {kind} test can't be removed: {error}", file=sys.stderr)


def present(config: Mapping[str, Any]) -> tuple[Json, Mapping[str, Any]]:
    """The machine's identity now, and the box with its evidence."""
    sys.path.insert(0, config["package"])
    from gpu_diag.hostfacts.gpu_diag_box import Question, discover
    from gpu_diag.identity import identity_of

    box = discover(Question(evidence=config["evidence"]))
    box["boot_id"] = Path(config["boot_id_file"]).read_text().strip()
    return identity_of(box), box


def clear(config: Mapping[str, Any], limit_seconds: float) -> Json:
    """Look, test what is missing, and say what is cleared. Raises OSError and ImportError."""
    end = time.monotonic() + limit_seconds
    identity, box = present(config)
    from gpu_diag.hostfacts.gpu_diag_evidence_files import revoked_by
    from gpu_diag.identity import differences

    found: dict[str, tuple[Mapping[str, Any] | None, str]] = {}
    for kind in ("integrity", "control") if config["control"] else ("integrity",):
        kinds = ("control", "p2p") if kind == "control" else (kind,)
        documents = sorted(
            (document for each in kinds for document in box["evidence"].get(each, ())),
            key=lambda document: str(document.get("finished_at")),
            reverse=True,
        )
        held = current(documents, identity, box["suspicions"], differences, revoked_by)
        outcome = held or run_probe(kind, config, identity, end - time.monotonic())
        found[kind] = (None, outcome) if isinstance(outcome, str) else (outcome, "")
    control = control_problem(*found["control"]) if config["control"] else None
    return clearance(str(identity["boot_id"]), refused_devices(*found["integrity"]), control)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the document as a whole; anybody may read it, since launchers run as other users."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Run; the exit status is 0 where all is cleared."""
    parser = argparse.ArgumentParser(prog="clearance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="what to test, and where")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for all tests together")
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.config.read_text(encoding="utf-8"))
        document = clear(config, options.limit)
        write(Path(config["output"]), document)
    except (OSError, ImportError, ValueError, KeyError) as error:
        print(f"clearance: it can't be given: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    problems = [*document["refused"].values(), *([document["control"]] if document["control"] else [])]
    for problem in problems:
        print(f"clearance: {problem}", file=sys.stderr)
    return EXIT_NOT_CLEARED if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
