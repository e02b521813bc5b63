"""`python -m tests.bench.plan`: how long planning 100 services on 8 boxes takes, from variables to files."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
for folder in ("roles/vllm_service/module_utils", "roles/gpu_diag/files", "tests/support"):
    sys.path.insert(0, str(ROOT / folder))

from evidence_support import integrity, with_evidence  # noqa: E402
from frontdoor_plan import plan_table, render  # noqa: E402
from plan_support import LAUNCHER, box, planned, variables  # noqa: E402

SERVICES = 100
BOXES = 8
GPUS = 8
ROUNDS = 5


def a_box(services: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables and the facts of a box with eight GPUs and this many services."""
    facts, raw = box("three_gpus"), variables("gpu_boxes")
    first = facts["gpus"][0]
    facts["gpus"] = [
        first
        | {"index": n, "uuid": f"GPU-{n:08}-0000-4000-8000-000000000000", "pci_address": f"0000:{n:02x}:00.0"}
        for n in range(GPUS)
    ]
    template = raw["vllm_service_services"]["ocr"]
    raw["vllm_service_services"] = {
        f"s{n}": copy.deepcopy(template)
        | {
            "slot": n + 1,
            "model": f"m{n}",
            "path": "OvisOCR2",
            "aliases": [f"a{n}"],
            "devices": [f"gpu{n % GPUS}"],
        }
        for n in range(services)
    }
    return raw, with_evidence(facts, integrity=[integrity(facts)])


def measure() -> float:
    """Seconds for all boxes: read the variables, plan, render, and write the table."""
    boxes = [a_box(SERVICES // BOXES + (n < SERVICES % BOXES)) for n in range(BOXES)]
    start = time.perf_counter()
    for raw, facts in boxes:
        plan = planned(raw, facts)
        render(plan, LAUNCHER)
        plan_table(plan)
    return time.perf_counter() - start


def main() -> int:
    """Print the best of five rounds, as a sentence and as JSON."""
    best = min(measure() for _ in range(ROUNDS))
    print(f"{SERVICES} services on {BOXES} boxes: planned and rendered in {best:.3f} s (best of {ROUNDS})")
    print(
        json.dumps(
            {"figure": "plan", "load": f"{SERVICES} services on {BOXES} boxes", "seconds": round(best, 4)}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
