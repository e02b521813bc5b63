"""``gpu_diag report``: the report of this box from the evidence that lies on it."""

from __future__ import annotations

import argparse
import json
import socket
from datetime import UTC, datetime
from pathlib import Path

from gpu_diag import exits
from gpu_diag.evidence import explained, timestamp, write_atomically
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.identity import identity_of
from gpu_diag.report.blocks import to_html, to_markdown
from gpu_diag.report.report import diagnosis_of, make_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--evidence", metavar="DIR", required=True, help="folder of evidence to read")
    parser.add_argument("--output", metavar="DIR", help="write report.md and report.html there")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Make the report; the exit status is about the report, not about the box."""
    if not Path(arguments.evidence).is_dir():
        raise exits.CouldNotRunError(
            f"there is no folder of evidence {arguments.evidence}: the probes make it (./box diagnose)"
        )
    box = discover(Question(evidence=arguments.evidence))
    identity = identity_of(box)
    documents, marks = box["evidence"], box["suspicions"]
    assert isinstance(documents, dict) and isinstance(marks, list)
    if arguments.json:
        diagnosis, _ = diagnosis_of(documents, identity)
        steps = [{"text": s.text, "why": s.why, "decisive": s.decisive} for s in diagnosis.ladder]
        facts = {
            "cause": diagnosis.cause,
            "headline": diagnosis.headline,
            "why": diagnosis.why,
            "ladder": steps,
        }
        print(json.dumps(facts, indent=1))
        return exits.CLEAN
    blocks = make_report(documents, marks, identity, socket.gethostname(), timestamp(datetime.now(UTC)))
    if arguments.output:
        folder = Path(arguments.output)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "report.md", to_markdown(blocks))
            write_atomically(folder / "report.html", to_html(blocks))
        print(f"The report is in {folder / 'report.md'} and {folder / 'report.html'}")
    else:
        print(to_markdown(blocks), end="")
    return exits.CLEAN
