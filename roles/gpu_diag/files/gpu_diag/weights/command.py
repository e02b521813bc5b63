"""``gpu_diag weights``: check a model folder, print the verdict, and leave it as evidence where told to."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_diag import exits
from gpu_diag.evidence import Evidence, EvidenceStore, Json, Tool, timestamp
from gpu_diag.hostfacts.gpu_diag_evidence_files import documents, model_of
from gpu_diag.hostfacts.gpu_diag_weights_state import WEIGHTS_TOOL_VERSION

if TYPE_CHECKING:
    from gpu_diag.weights.check import Outcome, Progress

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROGRESS_SECONDS = 0.5
_PROGRESS_SECONDS_IN_A_LOG = 10.0
_MEANING = {
    "verified": "every file has the hash that the hub recorded, and every value is finite",
    "values_only": "every value is finite; nobody recorded a hash to compare all files with",
    "structure_only": "the structure is whole; values of this format are not judged",
    "unverified": "the files could not be judged",
    "failed": "the files are wrong",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("folder", help="the model's folder")
    parser.add_argument(
        "--evidence", metavar="DIR", help="folder of evidence: results are kept and used again"
    )
    parser.add_argument("--json", action="store_true", help="print the evidence document, and nothing else")
    parser.add_argument(
        "--rehash", action="store_true", help="read everything again, also what didn't change"
    )
    parser.add_argument("--no-hash", action="store_true", help="only scan values: faster, never 'verified'")
    parser.add_argument(
        "--jobs", type=_positive, default=min(4, os.cpu_count() or 1), help="files read at once (%(default)s)"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="GLOB",
        help="tensors in which infinities, or scales that aren't positive, are meant so (masks are known)",
    )
    parser.add_argument(
        "--io-timeout",
        type=_positive,
        default=120,
        metavar="SECONDS",
        help="give up when the file system gives no byte for so long (%(default)s s)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Check the folder; returns the exit status."""
    from gpu_diag.weights.check import ALLOWED_BY_DEFAULT, Options

    folder = os.path.normpath(Path(arguments.folder).absolute())
    store = EvidenceStore(Path(arguments.evidence)) if arguments.evidence else None
    options = Options(
        rehash=arguments.rehash,
        hashing=not arguments.no_hash,
        jobs=arguments.jobs,
        allowed=(*ALLOWED_BY_DEFAULT, *arguments.allow),
        previous=_previous_details(arguments.evidence, folder) if arguments.evidence else {},
    )
    # The files alone are what a verdict on weights holds for; the machine is noted, and not compared.
    identity: Json = {"boot_id": _boot_id(), "kernel": platform.release()}
    started = datetime.now(UTC)
    running = store.begin("weights", "files", folder, identity, started) if store else None
    began = time.monotonic()
    outcome, is_stuck = _check(folder, options, arguments.io_timeout, show=not arguments.json)
    evidence = _evidence(outcome, started, time.monotonic() - began, identity, arguments.allow)
    if running is not None:
        running.finish(evidence)
    _print(evidence, outcome, arguments.json)
    status = exits.of_verdict(outcome.verdict)
    if is_stuck:
        # A thread still hangs inside the file system: an orderly exit would wait for it.
        sys.stdout.flush()
        os._exit(status)
    return status


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _previous_details(evidence: str, folder: str) -> Mapping[str, object]:
    for document in documents(evidence, "weights", []):
        details = document.get("details")
        if model_of(document) == folder and isinstance(details, dict):
            return details
    return {}


def _check(folder: str, options: object, io_timeout: float, show: bool) -> tuple[Outcome, bool]:
    """The outcome, and whether a read still hangs."""
    from gpu_diag.weights import check

    assert isinstance(options, check.Options)
    progress: Progress = check.Progress()
    results: list[Outcome | Exception] = []

    def check_and_tell() -> None:
        try:
            results.append(check.check_folder(folder, options, progress))
        except Exception as error:  # noqa: BLE001 - told by the main thread, which raises it again
            results.append(error)

    worker = threading.Thread(target=check_and_tell, daemon=True)
    worker.start()
    shown = _ProgressLine(progress) if show else None
    while worker.is_alive():
        worker.join(_PROGRESS_SECONDS if progress.done_bytes else 0.02)
        if worker.is_alive() and time.monotonic() - progress.moved_at > io_timeout:
            sentence = f"the file system of {folder} gave no byte for {io_timeout:g} s"
            return check.could_not_read(folder, "io_timeout", sentence), True
        if shown is not None:
            shown.show()
    if shown is not None:
        shown.end()
    result = results[0]
    if isinstance(result, Exception):
        raise result
    return result, False


class _ProgressLine:
    """One line on stderr: rewritten on a terminal, now and then a new one in a log."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._is_terminal = sys.stderr.isatty()
        self._began = self._shown_at = time.monotonic()

    def show(self) -> None:
        """Show where the check is, where it is time to."""
        now = time.monotonic()
        if not self._is_terminal and now - self._shown_at < _PROGRESS_SECONDS_IN_A_LOG:
            return
        self._shown_at = now
        line = progress_text(self._progress.done_bytes, self._progress.total_bytes, now - self._began)
        sys.stderr.write(f"\r\033[K{line}" if self._is_terminal else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_terminal:
            sys.stderr.write("\r\033[K")


def progress_text(done_bytes: int, total_bytes: int, seconds: float) -> str:
    """``1.2 of 70.0 GB, 1.8 GB/s, 38 s left``."""
    rate = done_bytes / seconds if seconds > 0 else 0.0
    left = f"{(total_bytes - done_bytes) / rate:.0f} s left" if rate > 0 else "time left unknown"
    return f"{done_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB, {rate / 1e9:.1f} GB/s, {left}"


def _evidence(
    outcome: Outcome, started: datetime, seconds: float, identity: Json, allowed: Iterable[str]
) -> Evidence:
    return Evidence(
        tool=Tool("weight_check", WEIGHTS_TOOL_VERSION, os.environ.get("GPU_DIAG_IMAGE_DIGEST") or None),
        started_at=timestamp(started),
        finished_at=timestamp(datetime.now(UTC)),
        identity=identity,
        verdict=outcome.verdict,
        class_=outcome.class_,
        details={**outcome.details, "allowed": sorted(set(allowed)), "seconds": round(seconds, 3)},
        evidence=tuple(fault.sentence for fault in outcome.faults),
        remediation=_remediation(outcome),
    )


def _remediation(outcome: Outcome) -> tuple[str, ...]:
    if outcome.class_ == "hash_changed":
        return (
            "Check the memory, the disk and the network file system of this machine, then run with --rehash.",
        )
    if outcome.class_ in ("not_finite", "bad_scale", "missing_scale"):
        return (
            "Compare the file's sha256 with the publisher's: where they differ, fetch it anew; where they "
            "are the same, the model was published so.",
        )
    if outcome.verdict == "failed":
        return ("Fetch the named file anew, keep the bad copy aside until the new one is verified.",)
    if outcome.class_ == "unsafe_format":
        return ("Convert the model to safetensors, or use a repository that has it.",)
    if outcome.verdict == "unverified":
        return ("See to it that the folder and its files can be read, then run the check again.",)
    return ()


def _print(evidence: Evidence, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print(json.dumps(evidence.document(), indent=1))
        return
    details = evidence.details
    class_ = f" ({evidence.class_})" if evidence.class_ else ""
    print(f"{evidence.verdict}{class_}: {details['model']}: {_MEANING[evidence.verdict]}")
    size = details["bytes"]
    gigabytes = size / 1e9 if isinstance(size, int) else 0.0
    print(f"  {details['tensors']} tensors, {gigabytes:.2f} GB, {details['seconds']} s")
    for sentence in evidence.evidence:
        print(f"  {sentence}")
    unshown = details["fault_count"]
    if isinstance(unshown, int) and unshown > len(outcome.faults):
        print(f"  and {unshown - len(outcome.faults)} more")
    for advice in evidence.remediation:
        print(f"  What to do: {advice}")
