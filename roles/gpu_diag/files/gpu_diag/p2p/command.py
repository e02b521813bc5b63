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
from gpu_diag.evidence import Evidence, EvidenceStore, Json, Run, Tool, evidence_of, timestamp
from gpu_diag.output import print_evidence
from gpu_diag.present import present_identity

if TYPE_CHECKING:
    from gpu_diag.devices.protocol import Device, Devices
    from gpu_diag.p2p.child import Offer
    from gpu_diag.p2p.child import Run as ProbeRun
    from gpu_diag.p2p.plan import Step
    from gpu_diag.p2p.verdict import Judgement

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
    parser.add_argument(
        "--control", action="store_true", help="only the control arm: the path through the host's memory"
    )
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
        "are pulled, copies by another process, and what the source sees of them)",
    )
    parser.add_argument(
        "--cpu", type=int, metavar="N", help="use N shares of this machine's memory instead of GPUs"
    )
    parser.add_argument(
        "--devices", type=int, default=_SIMULATED_DEVICES, help="number of simulated GPUs (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the check; returns the exit status."""
    from gpu_diag.devices.simulation import simulated_machine, simulation_names

    if arguments.simulate == "list":
        print("\n".join(simulation_names()))
        return exits.CLEAN
    if arguments.simulate and arguments.evidence:
        raise exits.UsageError("--simulate writes no evidence: leave --evidence out")
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 32)
    if arguments.simulate:
        # Made anew where the probe runs, in a process of its own: here a wrong name is told as one.
        simulated_machine(arguments.simulate, seed, arguments.devices, _rounds(arguments))
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
    from gpu_diag.p2p.child import run_in_child

    started = datetime.now(UTC)
    kind = "control" if arguments.control else "p2p"
    running = None
    if store is not None:
        recover(store, identity)
        running = store.begin(kind, "start", "all GPUs", identity, started)
    opener, planner = _opener(arguments, seed), _planner(arguments, seed)
    try:
        done = run_in_child(opener, planner, arguments.step_limit, _teller(arguments, running))
    except (exits.CouldNotRunError, KeyboardInterrupt):
        if running is not None:
            running.abandon()
        raise
    finally:
        if _shows_progress(arguments):
            sys.stderr.write("\r\033[K")
    evidence = _evidence(arguments, seed, identity, started, done)
    if running is not None:
        running.finish(evidence)
    return evidence


def _rounds(arguments: argparse.Namespace) -> int:
    if arguments.thorough:
        return _ROUNDS_THOROUGH
    return 1 if arguments.simulate or arguments.runtime == "cuda" else _ROUNDS


def _planner(arguments: argparse.Namespace, seed: int) -> Callable[[Offer], list[Step]]:
    from gpu_diag.p2p.plan import SIZES, make_plan
    from gpu_diag.p2p.words import choose_nonces

    def plan(offer: Offer) -> list[Step]:
        generator = random.Random(seed)
        return make_plan(
            devices=len(offer.devices),
            offered=lambda a, b: (a, b) in offer.access and not arguments.control,
            methods=offer.methods,
            nonces=choose_nonces(generator),
            generator=generator,
            rounds=_rounds(arguments),
            arena_words=offer.arena_words,
            largest=SIZES[-2] if arguments.runtime == "cuda" else SIZES[-1],
        )

    return plan


def _shows_progress(arguments: argparse.Namespace) -> bool:
    return not arguments.json and sys.stderr.isatty()


def _teller(arguments: argparse.Namespace, running: Run | None) -> Callable[[int, int, Step], None]:
    """Tells of each step: to the journal before it begins, and to whoever watches."""

    def tell(number: int, count: int, step: Step) -> None:
        pairs = ", ".join(f"{message.source}→{message.destination}" for message in step.messages)
        if running is not None:
            running.enter(f"{step.mode} {step.how} {pairs}")
        if _shows_progress(arguments):
            sys.stderr.write(f"\r\033[K{number + 1} of {count}: {step.mode}, {step.how}, {pairs}")

    return tell


def _evidence(
    arguments: argparse.Namespace, seed: int, identity: Json, started: datetime, done: ProbeRun
) -> Evidence:
    from gpu_diag.p2p.verdict import judge, judge_control

    offer = done.offer
    if offer is None:
        raise exits.CouldNotRunError(
            "the process that opened the devices died: the driver or torch crashed, see the kernel log"
        )
    if arguments.control:
        judgement = judge_control(len(offer.devices), done.results, done.ending)
    else:
        access = offer.access
        judgement = judge(len(offer.devices), lambda a, b: (a, b) in access, done.results, done.ending)
    return Evidence(
        tool=Tool("p2p_check", P2P_TOOL_VERSION, os.environ.get("GPU_DIAG_IMAGE_DIGEST") or None),
        started_at=timestamp(started),
        finished_at=timestamp(datetime.now(UTC)),
        identity=identity,
        verdict=judgement.verdict,
        class_=judgement.class_,
        details={
            **_details(judgement, done, identity),
            "seed": seed,
            "simulated": arguments.simulate,
            "runtime": "cpu" if arguments.cpu else arguments.runtime,
        },
        evidence=(*judgement.evidence, *offer.untested),
        remediation=remediation(judgement.verdict, judgement.class_),
    )


def _details(judgement: Judgement, done: ProbeRun, identity: Json) -> Json:
    from gpu_diag.p2p.plan import estimated_seconds
    from gpu_diag.p2p.words import WORD_BYTES

    devices = done.offer.devices if done.offer is not None else ()
    modes = [(result.step.mode, result.step.words) for result in done.results]
    return {
        "devices": [_described(device, identity) for device in devices],
        "pairs": [pair.document() for pair in judgement.pairs],
        "classes": list(judgement.classes),
        "landed": [
            {"owner": owner, "distance_bytes": distance, "sampled_words": count}
            for (owner, distance), count in judgement.landed.most_common(20)
        ],
        "control_words": sum(words for mode, words in modes if mode == "control"),
        "words": sum(words for mode, words in modes if mode != "control"),
        "planned_bytes": sum(step.words for step in done.steps) * WORD_BYTES,
        "planned_seconds": round(estimated_seconds(done.steps, len(devices)), 1),
        "steps": len(done.steps),
    }


def _described(device: Device, identity: Json) -> Json:
    """A device, with what only the identity knows of it: whichever of UUID and address is there finds it."""
    gpus = identity.get("gpus")
    known: Json = next(
        (
            gpu
            for gpu in (gpus if isinstance(gpus, list) else [])
            if (device.uuid and gpu.get("uuid") == device.uuid)
            or (device.pci_address and gpu.get("pci_address") == device.pci_address)
        ),
        {},
    )
    return {
        "name": device.name,
        "uuid": device.uuid or known.get("uuid"),
        "serial": device.serial or known.get("serial"),
        "pci_address": device.pci_address or known.get("pci_address"),
    }


def _opener(arguments: argparse.Namespace, seed: int) -> Callable[[], Devices]:
    if arguments.simulate is not None:
        from gpu_diag.devices.simulation import simulated_machine

        machine = simulated_machine(arguments.simulate, seed, arguments.devices, _rounds(arguments))
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
