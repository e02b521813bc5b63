"""GPUs through the CUDA runtime library itself (ctypes): what torch can't do.

Copies *pulled* by the destination's copy engine, copies by another process (IPC), and the source's own look
at the destination's memory, which makes a mirror visible. Words are made and compared by the host on behalf
of the owner, through the owner's own copies: slower than torch, so plans for it are smaller.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np

from gpu_diag.devices.cuda_ipc import Mover
from gpu_diag.devices.cuda_library import CudaLibrary, load_library
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
from gpu_diag.p2p.words import HOST, WORD_BYTES, Message, Positions, Words

_CHUNK_WORDS = 8 << 20
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_PEER_ACCESS_ALREADY_ENABLED = 704
_FREE_BYTES_NEEDED = (ARENA_WORDS + _CHUNK_WORDS) * WORD_BYTES + (128 << 20)
_NAME_BYTES = 32


def open_runtime() -> CudaDevices:
    """All GPUs. Raises NoDevicesError where the library or a GPU is missing, or memory is short."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return CudaDevices(load_library())


class CudaDevices:
    """See ``Devices``."""

    def __init__(self, library: CudaLibrary, arena_words: int = ARENA_WORDS) -> None:
        self._library, self._functions = library, library.functions
        self.arena_words = arena_words
        count = ctypes.c_int()
        if self._functions.cudaGetDeviceCount(ctypes.byref(count)) or not count.value:
            raise NoDevicesError("the CUDA runtime sees no GPU: start the container with --gpus all")
        numbers = range(count.value)
        self.devices: Sequence[Device] = [
            Device(f"CUDA device {number}", None, None, self._pci_address(number)) for number in numbers
        ]
        self._access = {
            (a, b) for a in numbers for b in numbers if a != b and self._offers(a, b) and self._enable(a, b)
        }
        self._streams = [self._stream(number) for number in numbers]
        self._arenas = [self._allocate(number, arena_words) for number in numbers]
        self._scratch = [self._allocate(number, _CHUNK_WORDS) for number in numbers]
        self._host = self._pinned(HOST_ARENA_WORDS)
        self._stage = self._pinned(_CHUNK_WORDS)
        self._movers: list[Mover] = []
        self._untested: list[str] = []
        self._start_movers()

    def _start_movers(self) -> None:
        """One process for each GPU, which opens the arenas that it may reach. Without IPC there are none."""
        numbers = range(len(self.devices))
        if not self._access:
            return
        try:
            handles = [self._library.export(arena) for arena in self._arenas]
            for source in numbers:
                reached = [number for number in numbers if (source, number) in self._access]
                self._movers.append(Mover(self._library.path, source, handles, reached))
        except DeviceLostError as error:
            self._untested.append(f"Memory of another process (CUDA IPC) was not tested: {error}.")
            for mover in self._movers:
                mover.end()
            self._movers = []

    def _call(self, name: str, *arguments: object) -> None:
        self._library.call(name, *arguments)

    def _use(self, number: int) -> None:
        self._call("cudaSetDevice", number)

    def _pci_address(self, number: int) -> str | None:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        if self._functions.cudaDeviceGetPCIBusId(text, _NAME_BYTES, number):
            return None
        return text.value.decode().lower()

    def _offers(self, source: int, destination: int) -> bool:
        can = ctypes.c_int()
        self._call("cudaDeviceCanAccessPeer", ctypes.byref(can), source, destination)
        return bool(can.value)

    def _enable(self, source: int, destination: int) -> bool:
        self._use(source)
        status = self._functions.cudaDeviceEnablePeerAccess(destination, 0)
        return status in (0, _PEER_ACCESS_ALREADY_ENABLED)

    def _stream(self, number: int) -> ctypes.c_void_p:
        self._use(number)
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreate", ctypes.byref(stream))
        return stream

    def _allocate(self, number: int, words: int) -> int:
        self._use(number)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        if words == self.arena_words and free.value < _FREE_BYTES_NEEDED:
            raise NoDevicesError(
                f"GPU {number} has {free.value / 2**30:.1f} GiB of free memory, the check needs "
                f"{_FREE_BYTES_NEEDED / 2**30:.1f} GiB: put the engines on it to sleep first"
            )
        pointer = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(words * WORD_BYTES))
        return int(pointer.value or 0)

    def _pinned(self, words: int) -> Words:
        pointer = ctypes.c_void_p()
        self._call("cudaHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(words * WORD_BYTES), 0)
        array_type = ctypes.c_uint64 * words
        array: Words = np.ctypeslib.as_array(array_type.from_address(int(pointer.value or 0)))
        return array

    def peer_access(self, source: int, destination: int) -> bool:
        """Whether the driver offers it, and it could be enabled."""
        return (source, destination) in self._access

    def methods(self) -> Sequence[How]:
        """Pushed by the source's copy engine, pulled by the destination's, and pushed by another process."""
        return ("copy_engine", "pull", "ipc") if self._movers else ("copy_engine", "pull")

    def untested(self) -> Sequence[str]:
        """Why other processes are left out, where they are."""
        return self._untested

    def _copy_host(self, owner: int, position: int, words: Words, direction: int) -> None:
        self._use(owner)
        device = ctypes.c_void_p(self._arenas[owner] + position * WORD_BYTES)
        host = ctypes.c_void_p(words.ctypes.data)
        target, source = (device, host) if direction == _HOST_TO_DEVICE else (host, device)
        self._call("cudaMemcpy", target, source, ctypes.c_size_t(words.size * WORD_BYTES), direction)

    def fill(self, owner: int, begin: int, count: int, first_word: int) -> None:
        """Words made by the host, copied by the owner."""
        for start in range(0, count, _CHUNK_WORDS):
            size = min(_CHUNK_WORDS, count - start)
            words = _ramp(first_word + start, size)
            if owner == HOST:
                self._host[begin + start : begin + start + size] = words
            else:
                self._stage[:size] = words
                self._copy_host(owner, begin + start, self._stage[:size], _HOST_TO_DEVICE)

    def move(self, messages: Sequence[Message], how: How) -> None:
        """Start all copies on the streams of those who issue them, then wait for all devices."""
        for message in messages:
            if how == "staged":
                self._through_the_host(message)
            elif how == "ipc":
                place, source = message.begin * WORD_BYTES, message.source_begin * WORD_BYTES
                mover = self._movers[message.source]
                mover.start(message.destination, place, source, message.count * WORD_BYTES)
            else:
                issuer = message.destination if how == "pull" else message.source
                target = self._arenas[message.destination] + message.begin * WORD_BYTES
                source = self._arenas[message.source] + message.source_begin * WORD_BYTES
                self._copy_peer(target, message.destination, source, message.source, message.count, issuer)
        for message in messages if how == "ipc" else ():
            self._movers[message.source].wait()
        for number in range(len(self.devices)):
            self._use(number)
            self._call("cudaDeviceSynchronize")

    def _copy_peer(
        self, target: int, target_device: int, source: int, source_device: int, words: int, issuer: int
    ) -> None:
        self._use(issuer)
        self._call(
            "cudaMemcpyPeerAsync",
            ctypes.c_void_p(target),
            target_device,
            ctypes.c_void_p(source),
            source_device,
            ctypes.c_size_t(words * WORD_BYTES),
            self._streams[issuer],
        )

    def _through_the_host(self, message: Message) -> None:
        for start in range(0, message.count, _CHUNK_WORDS):
            stage = self._stage[: min(_CHUNK_WORDS, message.count - start)]
            self._copy_host(message.source, message.source_begin + start, stage, _DEVICE_TO_HOST)
            self._copy_host(message.destination, message.begin + start, stage, _HOST_TO_DEVICE)

    def differing(self, owner: int, begin: int, count: int, first_word: int) -> Differences:
        """The owner's own copies of its memory, compared with what should be there."""
        found, words, total = [], [], 0
        for start in range(0, count, _CHUNK_WORDS):
            size = min(_CHUNK_WORDS, count - start)
            seen = self._host[begin + start : begin + start + size] if owner == HOST else self._stage[:size]
            if owner != HOST:
                self._copy_host(owner, begin + start, seen, _DEVICE_TO_HOST)
            wrong = np.flatnonzero(seen != _ramp(first_word + start, size))
            total += wrong.size
            if wrong.size:
                sampled = wrong[_sample_of(wrong.size)]
                found.append(sampled + begin + start)
                words.append(seen[sampled])
        if not total:
            return Differences(0, np.empty(0, np.int64), np.empty(0, np.uint64))
        positions = np.concatenate(found)
        chosen = _sample_of(positions.size)
        return Differences(total, positions[chosen], np.concatenate(words)[chosen])

    def read_back(self, message: Message) -> int | None:
        """What the source's own engine reads out of the destination's memory."""
        if not self.peer_access(message.source, message.destination):
            return None
        wrong = 0
        for start in range(0, message.count, _CHUNK_WORDS):
            size = min(_CHUNK_WORDS, message.count - start)
            remote = self._arenas[message.destination] + (message.begin + start) * WORD_BYTES
            scratch = self._scratch[message.source]
            self._copy_peer(scratch, message.source, remote, message.destination, size, message.source)
            self._call("cudaDeviceSynchronize")
            seen = self._stage[:size]
            host, device = ctypes.c_void_p(seen.ctypes.data), ctypes.c_void_p(scratch)
            self._call("cudaMemcpy", host, device, ctypes.c_size_t(size * WORD_BYTES), _DEVICE_TO_HOST)
            wrong += int((seen != _ramp(message.first_word + start, size)).sum())
        return wrong


def _sample_of(count: int) -> Positions:
    return np.concatenate([np.arange(a, b) for a, b in sampled_windows(count)])


def _ramp(first_word: int, count: int) -> Words:
    return np.arange(count, dtype=np.uint64) + np.uint64(first_word)
