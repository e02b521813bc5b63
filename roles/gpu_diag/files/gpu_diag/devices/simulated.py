"""A simulated machine with GPUs, healthy or with faults that act below the device protocol."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from gpu_diag.devices.faults import Fault, Transfer, Write
from gpu_diag.devices.memory import Piece, SparseMemory, sample
from gpu_diag.devices.protocol import (
    ARENA_WORDS,
    HOST_ARENA_WORDS,
    Device,
    DeviceLostError,
    Differences,
    How,
)
from gpu_diag.p2p.words import HOST, Message

_WORD_LIMIT = 1 << 64
_HOST_ARENA = -1
# What happens to the machine as a whole, by name; the number of the transfer between GPUs at which it does.
MACHINE_EVENTS = (
    "hang",
    "host_reset",
    "lost_gpu",
    "no_peer_access",
    "one_pair_without_access",
    "control_broken",
)
_EVENT_AT_TRANSFER = 20


class SimulatedDevices:
    """``count`` GPUs. ``events`` are names of MACHINE_EVENTS, ``faults`` change the words of transfers."""

    arena_words = ARENA_WORDS

    def __init__(self, count: int, faults: Sequence[Fault] = (), events: Sequence[str] = ()) -> None:
        self.devices: Sequence[Device] = [
            Device(f"simulated GPU {number}", f"GPU-{number:08x}-0000-0000-0000-000000000000", None, None)
            for number in range(count)
        ]
        self._faults, self._events = list(faults), set(events)
        self._memory = {owner: SparseMemory() for owner in (*range(count), _HOST_ARENA)}
        self._mirrors: dict[tuple[int, int], SparseMemory] = {}
        self._words_moved = 0
        self._transfers = 0

    def peer_access(self, source: int, destination: int) -> bool:
        """As the driver would say."""
        if "one_pair_without_access" in self._events and (source, destination) == (0, 1):
            return False
        return "no_peer_access" not in self._events

    def methods(self) -> Sequence[How]:
        """Both ways that GPUs have."""
        return ("copy_engine", "store")

    def untested(self) -> Sequence[str]:
        """None: both ways are always there."""
        return ()

    def fill(self, owner: int, begin: int, count: int, first_word: int) -> None:
        """The owner's memory holds a ramp from now on."""
        piece = Piece(begin, begin + count, (first_word - begin) % _WORD_LIMIT)
        self._memory[_arena(owner)].write(piece)
        for (_, target), mirror in self._mirrors.items():
            if target == owner:
                mirror.clear()

    def move(self, messages: Sequence[Message], how: How) -> None:
        """Read all sources, then let the writes arrive, changed by the faults."""
        if how != "staged":
            self._transfers += 1
            self._machine_events()
        pairs = {(message.source, message.destination) for message in messages}
        writes: list[Write] = []
        for message in messages:
            opposite = (message.destination, message.source) in pairs
            transfer = Transfer(message, how, len(messages), opposite, len(self.devices), self._words_moved)
            writes += self._writes(transfer)
            self._words_moved += message.count if how != "staged" else 0
        for write in writes:
            self._write(write)

    def _machine_events(self) -> None:
        if self._transfers < _EVENT_AT_TRANSFER:
            return
        if "hang" in self._events:
            while True:
                time.sleep(60)
        if "host_reset" in self._events:
            os.kill(os.getpid(), signal.SIGKILL)
        if "lost_gpu" in self._events:
            raise DeviceLostError("the simulated GPU 0 has fallen off the bus")

    def _writes(self, transfer: Transfer) -> list[Write]:
        message = transfer.message
        source = self._memory[message.source]
        by = message.begin - message.source_begin
        read = source.read(message.source_begin, message.source_begin + message.count)
        writes = [Write(message.destination, piece.moved(by)) for piece in read]
        if transfer.how == "staged":
            return [] if "control_broken" in self._events else writes
        for fault in self._faults:
            writes = fault.act(transfer, writes, source.read)
        return writes

    def _write(self, write: Write) -> None:
        size = HOST_ARENA_WORDS if write.owner == _HOST_ARENA else self.arena_words
        begin, end = max(0, write.piece.begin), min(size, write.piece.end)
        if begin >= end:
            return  # it landed in memory that isn't ours to look at
        piece = write.piece.part(begin, end)
        if write.seen_by is None:
            self._memory[write.owner].write(piece)
        else:
            self._mirrors.setdefault((write.seen_by, write.owner), SparseMemory()).write(piece)

    def differing(self, owner: int, begin: int, count: int, first_word: int) -> Differences:
        """What the owner sees."""
        pieces = self._memory[_arena(owner)].read(begin, begin + count)
        base = (first_word - begin) % _WORD_LIMIT
        return sample(part for piece in pieces for part in piece.differing(base))

    def read_back(self, message: Message) -> int | None:
        """What the source sees: its own mirror image where it has one, else what the owner sees."""
        base = (message.first_word - message.begin) % _WORD_LIMIT
        pieces = self._memory[message.destination].read(message.begin, message.end)
        mirror = self._mirrors.get((message.source, message.destination))
        seen = SparseMemory()
        for piece in (*pieces, *(mirror.read(message.begin, message.end) if mirror else ())):
            seen.write(piece)
        return sample(
            p for piece in seen.read(message.begin, message.end) for p in piece.differing(base)
        ).total


def _arena(owner: int) -> int:
    return _HOST_ARENA if owner == HOST else owner
