"""How fast the weights probe reads: `python tests/bench/gpu_diag/bench_weights.py [GiB] [FOLDER]`.

Writes a bfloat16 file (1 GiB unless said), so that it lies in the page cache, and prints GB/s on one thread:
the library hash alone, the probe with hashing, the probe without, and the peak of memory.
"""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "roles" / "gpu_diag" / "files"))

from gpu_diag.weights.check import Options, Progress, check_folder
from gpu_diag.weights.encodings import BLOCK_BYTES

_TRIES = 3


def write_model(path: Path, size: int) -> None:
    """A file with one tensor of `size` bytes, its values finite and not all the same."""
    header = {"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    block = np.random.default_rng(1).integers(0, 0x7F80, 2**23, np.uint16).tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, size, len(block)):
            file.write(block[: size - begin])


def best_rate(size: int, work: Callable[[], object]) -> float:
    """GB/s of the best of three tries."""
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return size / min(seconds) / 1e9


def hash_in_memory(size: int) -> None:
    """The library hash's own rate: the same block from the cache, again and again."""
    block, digest = bytes(BLOCK_BYTES), hashlib.sha256()
    for _ in range(size // BLOCK_BYTES):
        digest.update(block)


def main() -> None:
    """Measure and print."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 2**30)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        write_model(Path(folder) / "model.safetensors", size)
        hash_rate = best_rate(size, lambda: hash_in_memory(size))
        for hashing in (True, False):
            options = Options(hashing=hashing, jobs=1)
            rate = best_rate(size, lambda chosen=options: check_folder(folder, chosen, Progress()))  # type: ignore[misc]
            of_hash = f", {rate / hash_rate:.2f} of the hash's own rate" if hashing else ""
            print(f"probe {'with' if hashing else 'without'} hashing: {rate:.2f} GB/s{of_hash}")
    print(f"sha256 alone: {hash_rate:.2f} GB/s")
    print(f"peak of memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
