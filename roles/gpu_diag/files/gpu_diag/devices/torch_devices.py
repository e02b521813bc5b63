"""Devices through torch: GPUs, and the processor's memory as a stand-in that has no peer path.

How torch 2.x copies between GPUs: with peer access the copy engine of the *source* pushes contiguous copies,
and strided ones run a kernel on the source that stores into the peer's memory. Without peer access the same
call goes through the host unnoticed, which is why nothing is moved then. Torch is imported only when devices
are opened.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpu_diag.devices.memory import sampled_windows
from gpu_diag.devices.protocol import (
    ARENA_WORDS,
    HOST_ARENA_WORDS,
    Device,
    DeviceLostError,
    Differences,
    How,
    NoDevicesError,
)
from gpu_diag.p2p.words import HOST, WORD_BYTES, Message

_CHUNK_WORDS = 8 << 20
_CPU_ARENA_WORDS = (192 << 20) // WORD_BYTES
_WORD_LIMIT, _SIGN = 1 << 64, 1 << 63
# The arena, and what torch and the comparison of a chunk need beside it.
_FREE_BYTES_NEEDED = ARENA_WORDS * WORD_BYTES + (256 << 20)


def import_torch() -> Any:
    """Torch, with GPUs in the order of their PCI addresses. Raises NoDevicesError where it isn't
    installed."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NoDevicesError(
            "this needs torch, which this Python doesn't have: run it inside the engine's image"
        ) from error


def gpu_targets(torch: Any) -> list[Any]:
    """All GPUs that torch sees. Raises NoDevicesError where there is none."""
    if not torch.cuda.is_available():
        raise NoDevicesError(
            "torch sees no GPU: start the container with --gpus all, and see whether nvidia-smi works"
        )
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def cpu_targets(torch: Any, count: int) -> list[Any]:
    """The processor, ``count`` times."""
    return [torch.device("cpu")] * count


def open_gpus() -> TorchDevices:
    """All GPUs. Raises NoDevicesError where there is none, or one has too little free memory."""
    torch = import_torch()
    targets = gpu_targets(torch)
    for target in targets:
        with _lost_devices():
            free, _ = torch.cuda.mem_get_info(target)
        if free < _FREE_BYTES_NEEDED:
            raise NoDevicesError(
                f"GPU {target.index} has {free / 2**30:.1f} GiB of free memory, the check needs "
                f"{_FREE_BYTES_NEEDED / 2**30:.1f} GiB: put the engines on it to sleep first"
            )
    return TorchDevices(torch, targets, ARENA_WORDS)


def open_cpu(count: int) -> TorchDevices:
    """``count`` shares of this machine's memory."""
    torch = import_torch()
    return TorchDevices(torch, cpu_targets(torch, count), _CPU_ARENA_WORDS)


def describe(torch: Any, target: Any, number: int) -> Device:
    """What torch knows of a device."""
    if target.type != "cuda":
        return Device(f"share {number} of the processor, standing for a GPU", None, None, None)
    properties = torch.cuda.get_device_properties(target)
    uuid = getattr(properties, "uuid", None)
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    bus = [part for part in parts if isinstance(part, int)]
    address = "{:04x}:{:02x}:{:02x}.0".format(*bus) if len(bus) == 3 else None
    return Device(properties.name, f"GPU-{uuid}" if uuid is not None else None, None, address)


@contextmanager
def _lost_devices() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise DeviceLostError(str(error).splitlines()[0]) from error


def _signed(word: int) -> int:
    """The word as torch's signed 64-bit integer has it."""
    word %= _WORD_LIMIT
    return word - _WORD_LIMIT if word >= _SIGN else word


class TorchDevices:
    """See ``Devices``. ``targets`` are torch devices; several may be the same processor."""

    def __init__(self, torch: Any, targets: Sequence[Any], arena_words: int) -> None:
        self._torch, self._targets = torch, list(targets)
        self.arena_words = arena_words
        self._is_cuda = bool(targets) and targets[0].type == "cuda"
        self.devices: Sequence[Device] = [
            describe(torch, target, number) for number, target in enumerate(self._targets)
        ]
        with _lost_devices():
            self._arenas = [
                torch.empty(arena_words, dtype=torch.int64, device=target) for target in self._targets
            ]
            self._host = torch.empty(HOST_ARENA_WORDS, dtype=torch.int64, pin_memory=self._is_cuda)
            self._stage = torch.empty(_CHUNK_WORDS, dtype=torch.int64, pin_memory=self._is_cuda)

    def peer_access(self, source: int, destination: int) -> bool:
        """As the driver says; shares of one memory have no path between them to check."""
        return self._is_cuda and bool(self._torch.cuda.can_device_access_peer(source, destination))

    def methods(self) -> Sequence[How]:
        """Copies by the engine, and stores by a kernel."""
        return ("copy_engine", "store")

    def untested(self) -> Sequence[str]:
        """None: both ways are always there."""
        return ()

    def _arena(self, owner: int) -> Any:
        return self._host if owner == HOST else self._arenas[owner]

    def fill(self, owner: int, begin: int, count: int, first_word: int) -> None:
        """Straight into the arena: a temporary of its size would not fit beside engines."""
        first = _signed(first_word)
        with _lost_devices():
            self._torch.arange(first, first + count, out=self._arena(owner)[begin : begin + count])

    def move(self, messages: Sequence[Message], how: How) -> None:
        """Start all copies, then wait for all devices."""
        with _lost_devices():
            self._wait()
            for message in messages:
                source = self._arenas[message.source][message.source_begin :][: message.count]
                target = self._arenas[message.destination][message.begin : message.end]
                if how == "staged":
                    self._through_the_host(source, target)
                elif how == "copy_engine":
                    target.copy_(source, non_blocking=True)
                else:
                    for start in (0, 1):
                        target[start::2].copy_(source[start::2], non_blocking=True)
            self._wait()

    def _through_the_host(self, source: Any, target: Any) -> None:
        for begin in range(0, source.numel(), _CHUNK_WORDS):
            part = source[begin : begin + _CHUNK_WORDS]
            stage = self._stage[: part.numel()]
            stage.copy_(part)
            target[begin : begin + _CHUNK_WORDS].copy_(stage)

    def _wait(self) -> None:
        if self._is_cuda:
            for target in self._targets:
                self._torch.cuda.synchronize(target)

    def differing(self, owner: int, begin: int, count: int, first_word: int) -> Differences:
        """Compared on the device that owns the memory; only a sample of wrong words leaves it."""
        arena, found, total = self._arena(owner), [], 0
        with _lost_devices():
            for start in range(begin, begin + count, _CHUNK_WORDS):
                end = min(start + _CHUNK_WORDS, begin + count)
                first = _signed(first_word + start - begin)
                expected = self._torch.arange(first, first + end - start, device=arena.device)
                wrong = arena[start:end] != expected
                number = int(wrong.sum())
                total += number
                if number:
                    found.append(self._sampled(self._torch.nonzero(wrong).flatten()) + start)
            if not total:
                return Differences(0, np.empty(0, np.int64), np.empty(0, np.uint64))
            chosen = self._sampled(self._torch.cat(found))
            words = arena[chosen].cpu().numpy().view(np.uint64)
            return Differences(total, chosen.cpu().numpy(), words)

    def _sampled(self, positions: Any) -> Any:
        """Where everything is wrong, all positions would take as much memory as the arena: only a sample
        stays."""
        return self._torch.cat([positions[a:b] for a, b in sampled_windows(positions.numel())])

    def read_back(self, message: Message) -> int | None:
        """Torch has no load by the source from the destination's memory: not measured."""
        return None
