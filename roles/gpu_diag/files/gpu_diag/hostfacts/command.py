"""``gpu_diag host``: what the host says about itself. It explains a verdict and never improves one."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from gpu_diag import exits
from gpu_diag.evidence import Evidence, EvidenceStore, Tool, timestamp
from gpu_diag.hostfacts.collect import collect, sentences
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.identity import identity_of
from gpu_diag.output import print_evidence

HOST_TOOL_VERSION = "1.0.0"
_MEANING = {"not_applicable": "facts about the host; they prove nothing about the paths between GPUs"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--evidence", metavar="DIR", help="folder of evidence to write the document to")
    parser.add_argument("--json", action="store_true", help="print the evidence document, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Discover the host and print it."""
    started = datetime.now(UTC)
    box = discover(Question())
    details, problems = collect(box)
    known = box["problems"]
    evidence = Evidence(
        tool=Tool("host_evidence", HOST_TOOL_VERSION),
        started_at=timestamp(started),
        finished_at=timestamp(datetime.now(UTC)),
        identity=identity_of(box),
        verdict="not_applicable",
        class_=None,
        details={
            "gpus": box["gpus"],
            "docker": box["docker"],
            **details,
            "problems": [*(known if isinstance(known, list) else []), *problems],
        },
        evidence=(*sentences(box, details), *(f"Not known: {problem}." for problem in problems)),
    )
    if arguments.evidence:
        EvidenceStore(Path(arguments.evidence)).write("host", evidence)
    print_evidence(evidence, arguments.json, _MEANING, "host")
    return exits.CLEAN
