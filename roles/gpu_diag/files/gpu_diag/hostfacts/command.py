"""``gpu_diag host``: what the host says about itself."""

from __future__ import annotations

import argparse
import json

from gpu_diag import exits
from gpu_diag.hostfacts.gpu_diag_box import Question, discover


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print the facts as JSON, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Discover the host and print it."""
    box = discover(Question())
    if arguments.json:
        print(json.dumps(box, indent=2))
        return exits.CLEAN
    gpus = box["gpus"]
    count = len(gpus) if isinstance(gpus, list) else 0
    print(f"{box['hostname']}: {count} GPUs, kernel {box['kernel']}")
    for key in ("driver", "docker", "bios_version", "iommu_group_types", "kernel_command_line", "gpus"):
        print(f"  {key}: {box[key]}")
    problems = box["problems"]
    for problem in problems if isinstance(problems, list) else []:
        print(f"  not known: {problem}")
    return exits.CLEAN
