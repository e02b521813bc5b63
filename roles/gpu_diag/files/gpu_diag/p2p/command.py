"""``gpu_diag p2p``: check the paths between GPUs, on real devices or on a simulated machine with a fault."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_diag import exits
from gpu_diag.evidence import Evidence, EvidenceStore, Json, Tool, evidence_of, timestamp
from gpu_diag.output import print_evidence
from gpu_diag.present import present_identity

if TYPE_CHECKING:
    from gpu_diag.devices.protocol import Devices

P2P_TOOL_VERSION = "1.0.0"
_ROUNDS = 2
_ROUNDS_THOROUGH = 10
_SIMULATED_DEVICES = 3
_MEANING = {
    "clean": "every word arrived where it belongs, between all pairs",
    "corrupt": "words did not arrive as they were sent",
    "hang": "a copy did not end",
    "inconclusive": "nothing can be said about the paths between GPUs",
    "not_applicable": "there is no path between GPUs to check",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--evidence", metavar="DIR", help="folder of evidence to write the document to")
    parser.add_argument("--json", action="store_true", help="print the evidence document, and nothing else")
    parser.add_argument("--thorough", action="store_true", help=f"{_ROUNDS_THOROUGH} rounds, not {_ROUNDS}")
    parser.add_argument(
        "--step-limit",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a copy that takes longer is a hang (%(default)g s)",
    )
    parser.add_argument("--seed", type=int, help="where the words lie and what a simulation draws (random)")
    parser.add_argument(
        "--simulate",
        metavar="FAULT",
        help="use simulated GPUs with this fault; `list` names the faults, several are joined by +",
    )
    parser.add_argument(
        "--runtime",
        choices=("torch", "cuda"),
        default="torch",
        help="what moves the words: torch, or the CUDA runtime itself (slower, smaller sizes; copies that "
        "are pulled, and what the source sees of them)",
    )
    parser.add_argument(
        "--cpu", type=int, metavar="N", help="use N shares of this machine's memory instead of GPUs"
    )
    parser.add_argument(
        "--devices", type=int, default=_SIMULATED_DEVICES, help="number of simulated GPUs (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the check; returns the exit status."""
    from gpu_diag.devices.simulation import simulation_names

    if arguments.simulate == "list":
        print("\n".join(simulation_names()))
        return exits.CLEAN
    if arguments.simulate and arguments.evidence:
        raise exits.UsageError("--simulate writes no evidence: leave --evidence out")
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 32)
    identity = _identity(arguments.simulate)
    if arguments.simulate == "host_reset":
        evidence = _simulated_reset(seed, arguments.devices)
    else:
        store = EvidenceStore(Path(arguments.evidence)) if arguments.evidence else None
        evidence = _check(arguments, seed, identity, store)
    print_evidence(evidence, arguments.json, _MEANING, "p2p")
    return exits.of_verdict(evidence.verdict)


def _identity(simulated: str | None) -> Json:
    return {"simulated": simulated} if simulated else present_identity()


def recover(store: EvidenceStore, identity: Json) -> None:
    """Write what probes that died before have to say."""
    boot_id = identity.get("boot_id")
    for interrupted in store.interrupted(boot_id if isinstance(boot_id, str) else None):
        if interrupted.kind != "weights":
            store.write(interrupted.kind, evidence_of(interrupted, datetime.now(UTC)))


def _check(arguments: argparse.Namespace, seed: int, identity: Json, store: EvidenceStore | None) -> Evidence:
    from gpu_diag.p2p.child import Offer, run_in_child
    from gpu_diag.p2p.plan import SIZES, Step, estimated_seconds, make_plan
    from gpu_diag.p2p.verdict import judge
    from gpu_diag.p2p.words import WORD_BYTES, choose_nonces

    is_slow = arguments.simulate or arguments.runtime == "cuda"
    rounds = _ROUNDS_THOROUGH if arguments.thorough else 1 if is_slow else _ROUNDS

    def planner(offer: Offer) -> list[Step]:
        generator = random.Random(seed)
        nonces = choose_nonces(generator)
        offered = lambda a, b: (a, b) in offer.access  # noqa: E731 - the set's own question
        count = len(offer.devices)
        largest = SIZES[-2] if arguments.runtime == "cuda" else SIZES[-1]
        return make_plan(count, offered, offer.methods, nonces, generator, rounds, offer.arena_words, largest)

    started = datetime.now(UTC)
    running = store.begin("p2p", "start", "all GPUs", identity, started) if store else None
    if store is not None:
        recover(store, identity)

    def on_step(number: int, count: int, step: Step) -> None:
        pairs = ", ".join(f"{m.source}→{m.destination}" for m in step.messages)
        if running is not None:
            running.enter(f"{step.mode} {step.how} {pairs}")
        if not arguments.json and sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{number + 1} of {count}: {step.mode}, {step.how}, {pairs}")

    opener = _opener(arguments, seed, rounds)
    try:
        done = run_in_child(opener, planner, arguments.step_limit, on_step)
    except exits.CouldNotRunError:
        if running is not None:
            running.abandon()
        raise
    finally:
        if not arguments.json and sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
    if done.offer is None:
        raise exits.CouldNotRunError("the process that opens the devices died: run it with --json to see why")
    offer = done.offer
    judgement = judge(len(offer.devices), lambda a, b: (a, b) in offer.access, done.results, done.ending)
    details: Json = {
        "devices": [
            {"name": d.name, "uuid": d.uuid, "serial": d.serial, "pci_address": d.pci_address}
            for d in offer.devices
        ],
        "pairs": [pair.document() for pair in judgement.pairs],
        "classes": list(judgement.classes),
        "landed": [
            {"owner": owner, "distance_bytes": distance, "sampled_words": count}
            for (owner, distance), count in judgement.landed.most_common(20)
        ],
        "control_words": sum(result.step.words for result in done.results if result.step.mode == "control"),
        "words": sum(result.step.words for result in done.results if result.step.mode != "control"),
        "planned_bytes": sum(step.words for step in done.steps) * WORD_BYTES,
        "planned_seconds": round(estimated_seconds(done.steps, len(offer.devices)), 1),
        "steps": len(done.steps),
        "seed": seed,
        "simulated": arguments.simulate,
    }
    evidence = Evidence(
        tool=Tool("p2p_check", P2P_TOOL_VERSION, os.environ.get("GPU_DIAG_IMAGE_DIGEST") or None),
        started_at=timestamp(started),
        finished_at=timestamp(datetime.now(UTC)),
        identity=identity,
        verdict=judgement.verdict,
        class_=judgement.class_,
        details=details,
        evidence=judgement.evidence,
        remediation=remediation(judgement.verdict, judgement.class_),
    )
    if running is not None:
        running.finish(evidence)
    return evidence


def _opener(arguments: argparse.Namespace, seed: int, rounds: int) -> Callable[[], Devices]:
    if arguments.simulate is not None:
        from gpu_diag.devices.simulation import simulated_machine

        machine = simulated_machine(arguments.simulate, seed, arguments.devices, rounds)
        return lambda: machine
    if arguments.runtime == "cuda":
        from gpu_diag.devices.cuda_runtime import open_runtime

        return open_runtime
    from gpu_diag.devices.torch_devices import open_cpu, open_gpus

    return (lambda: open_cpu(arguments.cpu)) if arguments.cpu else open_gpus


def remediation(verdict: str, class_: str | None) -> tuple[str, ...]:
    """What to do about a verdict, in the order to do it in."""
    staged = "Keep the staged path: NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce."
    if verdict == "corrupt":
        return (
            staged,
            "Boot once with `intel_iommu=on iommu=pt` (AMD: `iommu=pt`) and run this again: all pairs clean "
            "proves that the IOMMU's translation is the cause.",
            "Run `python3 -m gpu_diag report` for what changed since the last boot and for the next steps.",
        )
    if verdict == "hang":
        return (
            staged,
            "Look for Xid lines in the kernel log, reset the GPUs or reboot before they are used again.",
        )
    if class_ in ("control_failed", "control_hang"):
        return (
            "Stop the engines on these GPUs: not even the path through the host can be trusted.",
            "Test the host's memory, and each GPU with `python3 -m gpu_diag integrity`.",
        )
    if verdict == "inconclusive":
        return (staged, "Read the kernel log, then run this again.")
    return ()


def _simulated_reset(seed: int, count: int) -> Evidence:
    """A machine dies under the probe: the journal is all that is left, and the next boot reads it."""
    with tempfile.TemporaryDirectory() as folder:
        store = EvidenceStore(Path(folder))
        child = os.fork()
        if child == 0:
            _die_under_the_probe(store, seed, count)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise exits.CouldNotRunError("the simulated machine did not die")
        (interrupted,) = store.interrupted("the next boot")
        return evidence_of(interrupted, datetime.now(UTC))


def _die_under_the_probe(store: EvidenceStore, seed: int, count: int) -> None:
    from gpu_diag.devices.simulation import simulated_machine
    from gpu_diag.p2p.plan import make_plan
    from gpu_diag.p2p.probe import run_steps
    from gpu_diag.p2p.words import choose_nonces

    identity: Json = {"simulated": "host_reset", "boot_id": "the boot that died"}
    running = store.begin("p2p", "start", "all GPUs", identity, datetime.now(UTC))
    machine = simulated_machine("host_reset", seed, count, 1)
    generator = random.Random(seed)
    nonces = choose_nonces(generator)
    steps = make_plan(count, lambda a, b: True, machine.methods(), nonces, generator, 1)
    run_steps(machine, steps, lambda _, step: running.enter(step.mode), lambda _, __: None)
    os.kill(os.getpid(), signal.SIGTERM)
