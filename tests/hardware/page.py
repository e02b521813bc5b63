"""The page of what has never run on real hardware: all parts that need it, less recorded ones.

`python tests/hardware/page.py` writes it; a unit test holds the committed page to what this makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "never-run-on-hardware.md"
RECORDS = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """A part that only real hardware proves: an id, what it is, and what stands in for it so far."""

    id: str
    what: str
    instead: str


PARTS = (
    Part(
        "p2p-copy_engine",
        "`p2p`: copies pushed by the source's copy engine (torch)",
        "simulated GPUs; torch's processor device runs the same code without a path between devices",
    ),
    Part(
        "p2p-store",
        "`p2p`: a kernel on the source that stores into the other GPU's memory (torch, strided copies)",
        "simulated GPUs; torch's processor device",
    ),
    Part(
        "p2p-staged",
        "`p2p`: the control arm through pinned host memory",
        "torch's processor device, where the memory isn't pinned",
    ),
    Part("p2p-one-gpu", "`p2p` on a machine with one GPU", "a simulated machine"),
    Part(
        "p2p-pull",
        "`p2p`: copies pulled by the destination's copy engine, and read-back by the source (CUDA runtime)",
        "a library in C with the same functions, on the processor; simulated GPUs",
    ),
    Part(
        "p2p-ipc",
        "`p2p`: copies by another process, into memory that it opened by CUDA IPC as NCCL does",
        "a library in C with the same functions, on the processor, between real processes",
    ),
    Part("p2p-hang", "`p2p`: a copy that hangs in the driver, and a GPU that falls off the bus", "simulated"),
    Part(
        "integrity",
        "`integrity` on a GPU, with its error counters before and after",
        "torch's processor device",
    ),
    Part("weights", "`weights` in the CUDA engine image", "the CPU engine image"),
    Part(
        "nvidia-smi",
        "`nvidia-smi` live: inventory, topology, peer status, NVLink",
        "recorded forms of its output",
    ),
    Part(
        "nvidia-smi-in-container",
        "`nvidia-smi` in an engine's container, as its launcher asks it for used and total memory by UUID",
        "scripts in its place that answer in its form, answer otherwise, and hang",
    ),
    Part(
        "kernel-log", "the watcher on a kernel log in which a real fault appears", "recorded forms of lines"
    ),
    Part("acs", "ACS bits of the ports above a GPU, read from `/sys`", "made configuration spaces"),
    Part(
        "nccl-transport",
        "the transport that NCCL really chose, read from its log when a split model is deployed",
        "recorded forms of its lines; the deployment's part with a stand-in for Docker",
    ),
)


def recorded_parts(records: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """What was run on hardware, by part: GPU, driver and date. Raises ValueError for a record that doesn't
    count."""
    known = {part.id for part in PARTS}
    found = {}
    for record in records:
        part, gpu = record.get("part"), record.get("gpu")
        if part not in known:
            raise ValueError(f"there is no part {part!r}")
        if not isinstance(gpu, str) or not gpu.startswith(("NVIDIA", "AMD", "Tesla", "GeForce")):
            raise ValueError(f"the record of {part} names no real GPU: {gpu!r}")
        found[str(part)] = f"{gpu}, driver {record.get('driver')}, {record.get('date')}"
    return found


def page(records: Iterable[Mapping[str, object]]) -> str:
    """The page."""
    run = recorded_parts(records)
    never = [part for part in PARTS if part.id not in run]
    lines = [
        "# Never run on hardware",
        "",
        "These parts of the diagnostics have not been run on a real GPU yet. They are tested as the second",
        "column says, which proves their logic and not the hardware's behaviour. This page is generated from",
        "`tests/hardware`: a recorded outcome on a GPU takes a row off it.",
        "",
        "| part | tested so far by |",
        "| --- | --- |",
        *(f"| {part.what} | {part.instead} |" for part in never),
    ]
    if run:
        what = {part.id: part.what for part in PARTS}
        lines += ["", "Run on hardware:", "", *(f"- {what[part]}: {where}" for part, where in run.items())]
    return "\n".join(lines) + "\n"


def read_records() -> list[dict[str, object]]:
    """All records that lie here."""
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(read_records()))
