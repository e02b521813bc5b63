"""Copies by another process into memory that it opened by CUDA IPC: how NCCL's P2P/IPC reaches a peer.

One process for each source GPU opens the arenas by their handles and copies between them. It takes an order a
line (JSON) and answers each with a line; it ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_diag.devices.cuda_library import CudaLibrary, load_library
from gpu_diag.devices.protocol import DeviceLostError, NoDevicesError

_PACKAGES = Path(__file__).resolve().parents[2]
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_ERROR = "error"


class Mover:
    """The process that copies for one source GPU."""

    def __init__(self, library: str, source: int, handles: Sequence[bytes], reached: Sequence[int]) -> None:
        """Start it. Raises DeviceLostError with its own words where it can't open the memory."""
        self._source = source
        environment = {**os.environ, "PYTHONPATH": str(_PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, library, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        opened = {str(number): handles[number].hex() for number in (source, *reached)}
        self._send(opened)
        self.wait()

    def start(self, destination: int, target: int, source: int, count: int) -> None:
        """Order a copy of ``count`` bytes, at byte offsets of the arenas. Raises DeviceLostError."""
        self._send({"destination": destination, "target": target, "source": source, "count": count})

    def wait(self) -> None:
        """Wait for the answer to the oldest order. Raises DeviceLostError."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = (
            json.loads(line) if line else {_ERROR: f"the process that copies for GPU {self._source} died"}
        )
        if _ERROR in answer:
            raise DeviceLostError(str(answer[_ERROR]))

    def _send(self, order: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise DeviceLostError(f"the process that copies for GPU {self._source} died") from error

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def work(library: CudaLibrary, source: int) -> None:
    """What the process does: open the memory, then copy as it is told until there are no more orders."""
    library.call("cudaSetDevice", source)
    stream = ctypes.c_void_p()
    library.call("cudaStreamCreate", ctypes.byref(stream))
    handles = json.loads(sys.stdin.readline() or "{}")
    arenas = {int(number): library.open(bytes.fromhex(handle)) for number, handle in handles.items()}
    _answer({})
    for line in sys.stdin:
        order = json.loads(line)
        target = arenas[order["destination"]] + order["target"]
        library.copy(target, arenas[source] + order["source"], order["count"], stream)
        library.call("cudaDeviceSynchronize")
        _answer({})


def _answer(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Work for the GPU that the arguments name; what goes wrong is the last answer."""
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    try:
        work(load_library(sys.argv[1]), int(sys.argv[2]))
    except (DeviceLostError, NoDevicesError) as error:
        _answer({_ERROR: str(error)})


if __name__ == "__main__":
    main()
