"""``gpu_diag integrity``: check each GPU by itself, one child process for each."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from gpu_diag import exits
from gpu_diag.evidence import Evidence, EvidenceStore, Json, Tool, timestamp
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.integrity.verdict import DeviceResult, Finding, judge
from gpu_diag.output import print_evidence
from gpu_diag.p2p.command import recover
from gpu_diag.present import present_identity

INTEGRITY_TOOL_VERSION = "1.0.0"
_KILL_SECONDS = 2.0
_MEANING = {
    "clean": "copies and products are right on every GPU",
    "corrupt": "a GPU copies or computes wrongly, or its memory reports errors",
    "hang": "a GPU did not answer",
    "inconclusive": "the test came to no end",
    "not_applicable": "there is no GPU",
}
_REMEDIATION = {
    "corrupt": (
        "Take the GPU out of service, then run this again after a cold start: wrong again means the board.",
    ),
    "hang": ("Look for Xid lines in the kernel log, reset the GPU or reboot, then run this again.",),
    "inconclusive": ("Read the kernel log, then run this again.",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--evidence", metavar="DIR", help="folder of evidence to write the document to")
    parser.add_argument("--json", action="store_true", help="print the evidence document, and nothing else")
    parser.add_argument("--cpu", type=int, metavar="N", help="check the processor N times instead of GPUs")
    parser.add_argument("--seed", type=int, help="of the random contents (random)")
    parser.add_argument(
        "--stress", type=float, default=3.0, metavar="SECONDS", help="stress copies per GPU (%(default)g s)"
    )
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="a GPU that takes longer hangs"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the check; returns the exit status."""
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 32)
    box = discover(Question())
    identity = present_identity()
    started = datetime.now(UTC)
    store = EvidenceStore(Path(arguments.evidence)) if arguments.evidence else None
    if store is not None:
        recover(store, identity)
    running = store.begin("integrity", "start", "each GPU", identity, started) if store else None
    try:
        results = _check_all(arguments, seed, box)
    except (exits.CouldNotRunError, KeyboardInterrupt):
        if running is not None:
            running.abandon()
        raise
    judgement = judge(results)
    evidence = Evidence(
        tool=Tool("gpu_integrity", INTEGRITY_TOOL_VERSION, os.environ.get("GPU_DIAG_IMAGE_DIGEST") or None),
        started_at=timestamp(started),
        finished_at=timestamp(datetime.now(UTC)),
        identity=identity,
        verdict=judgement.verdict,
        class_=judgement.class_,
        details={
            "devices": list(judgement.devices),
            "seed": seed,
            "kind": "cpu" if arguments.cpu else "cuda",
            "stress_seconds": arguments.stress,
        },
        evidence=judgement.evidence,
        remediation=_REMEDIATION.get(judgement.verdict, ()),
    )
    if running is not None:
        running.finish(evidence)
    print_evidence(evidence, arguments.json, _MEANING, "integrity")
    return exits.of_verdict(evidence.verdict)


def _check_all(arguments: argparse.Namespace, seed: int, box: Json) -> list[DeviceResult]:
    results: list[DeviceResult] = []
    before = _counters(box)
    while True:
        number = len(results)
        result, count = _check_in_child(arguments, seed, number)
        after = _counters(discover(Question())) if not arguments.cpu else {}
        results.append(
            DeviceResult(
                name=result.name,
                uuid=result.uuid,
                findings=result.findings,
                ended=result.ended,
                sentence=result.sentence,
                counters_before=before.get(result.uuid or "", {}),
                counters_after=after.get(result.uuid or "", {}),
            )
        )
        if len(results) >= count:
            return results


def _counters(box: Json) -> dict[str, Mapping[str, object]]:
    gpus = box.get("gpus")
    return {
        str(gpu.get("uuid")): gpu["health"]
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu.get("health"), dict)
    }


def _check_in_child(arguments: argparse.Namespace, seed: int, number: int) -> tuple[DeviceResult, int]:
    """The result of one device, and how many devices there are."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_work, args=(arguments, seed, number, theirs), daemon=True)
    child.start()
    theirs.close()
    name, uuid, count = f"GPU {number}", None, 0
    try:
        while ours.poll(arguments.limit):
            kind, value = ours.recv()
            if kind == "refused":
                raise exits.CouldNotRunError(value)
            if kind == "device":
                name, uuid, count = value
            elif kind == "lost":
                return DeviceResult(name, uuid, (), "lost", f"the driver gave it up: {value}."), count
            else:
                return DeviceResult(name, uuid, tuple(value)), count
        return DeviceResult(name, uuid, (), "hang", f"it did not answer for {arguments.limit:g} s."), count
    except (EOFError, OSError):
        return DeviceResult(name, uuid, (), "died", "the process that tested it died."), count
    finally:
        ours.close()
        child.kill()
        child.join(_KILL_SECONDS)


def _work(arguments: argparse.Namespace, seed: int, number: int, theirs: Connection) -> None:
    from gpu_diag.devices.protocol import NoDevicesError
    from gpu_diag.devices.torch_devices import cpu_targets, describe, gpu_targets, import_torch
    from gpu_diag.integrity.checks import check_device

    try:
        torch = import_torch()
        targets = cpu_targets(torch, arguments.cpu) if arguments.cpu else gpu_targets(torch)
        device = describe(torch, targets[number], number)
        theirs.send(("device", (device.name, device.uuid, len(targets))))
        findings: list[Finding] = check_device(torch, targets[number], seed + number, arguments.stress)
        theirs.send(("findings", findings))
    except NoDevicesError as error:
        theirs.send(("refused", str(error)))
    except RuntimeError as error:
        theirs.send(("lost", str(error).splitlines()[0]))
    theirs.close()
    os._exit(0)
