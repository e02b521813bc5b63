"""How fast the weights probe reads: `python tests/bench/gpu_diag/bench_weights.py [GiB] [FOLDER]`.

Writes a bfloat16 file (1 GiB unless said) into the folder, so that it lies in the page cache, and prints GB
per second of one core's time: the probe with hashing and without, and what they are made of, measured in
turns in the same run. A machine that does other things as well changes the numbers, and hardly their ratios.
"""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "roles" / "gpu_diag" / "files"))

from gpu_diag.weights.check import Options, Progress, check_folder
from gpu_diag.weights.encodings import BLOCK_BYTES, ENCODINGS, Screen

_TURNS = 5
NEEDED_WITHOUT_HASHING, NEEDED_OF_THE_HASH, NEEDED_MEMORY_MIB = 8.0, 0.8, 300


def write_model(path: Path, size: int) -> None:
    """A file with one tensor of `size` bytes, its values finite and not all the same."""
    header = {"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    block = np.random.default_rng(1).integers(0, 0x7F80, 2**23, np.uint16).tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, size, len(block)):
            file.write(block[: size - begin])


def best_rates(size: int, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """GB per second of processor time, the best of some turns in which each work has its go."""
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(_TURNS):
        for name, work in works.items():
            began = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return {name: size / spent / 1e9 for name, spent in seconds.items()}


def hash_in_memory(size: int) -> None:
    """The library hash's own rate: the same block from the cache, again and again."""
    block, digest = bytes(BLOCK_BYTES), hashlib.sha256()
    for _ in range(size // BLOCK_BYTES):
        digest.update(block)


def scan_in_memory(size: int) -> None:
    """The scan alone, of the same block."""
    block = np.full(BLOCK_BYTES, 0x11, np.uint8)
    screen = Screen(ENCODINGS["BF16"], block)
    for _ in range(size // BLOCK_BYTES):
        screen.is_finite(BLOCK_BYTES)


def read_only(path: Path) -> None:
    """What the kernel takes to hand the file over, block by block."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def check(folder: str, hashing: bool) -> None:
    """The probe, on one thread."""
    outcome = check_folder(folder, Options(hashing=hashing, jobs=1), Progress())
    assert outcome.verdict == "values_only", outcome.faults


def main() -> int:
    """Measure, print, and say whether it is fast enough."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 2**30)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        path = Path(folder) / "model.safetensors"
        write_model(path, size)
        rates = best_rates(
            size,
            {
                "probe with hashing": lambda: check(folder, True),
                "probe without hashing": lambda: check(folder, False),
                "sha256 of the library, alone": lambda: hash_in_memory(size),
                "scan alone": lambda: scan_in_memory(size),
                "reading from the page cache alone": lambda: read_only(path),
            },
        )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    of_hash = rates["probe with hashing"] / rates["sha256 of the library, alone"]
    of_reading = rates["probe without hashing"] / rates["reading from the page cache alone"]
    for name, rate in rates.items():
        print(f"{name}: {rate:.2f} GB/s of one core")
    print(f"with hashing: {of_hash:.2f} of the hash's own rate (needed {NEEDED_OF_THE_HASH})")
    print(f"without: {of_reading:.2f} of reading alone (needed {NEEDED_WITHOUT_HASHING} GB/s)")
    print(f"peak of memory: {memory:.0f} MiB (needed below {NEEDED_MEMORY_MIB} MiB)")
    enough = of_hash >= NEEDED_OF_THE_HASH and rates["probe without hashing"] >= NEEDED_WITHOUT_HASHING
    return 0 if enough and memory < NEEDED_MEMORY_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
