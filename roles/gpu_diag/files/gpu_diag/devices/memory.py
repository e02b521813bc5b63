"""Sparse memory of simulated devices: pieces that are ramps, constants or arrays, so that gigabytes cost
nothing."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpu_diag.devices.protocol import LARGEST_SAMPLE, Differences
from gpu_diag.p2p.words import Positions, Words

_WORD_LIMIT = 1 << 64
_SAMPLED_RUN = 512


@dataclass(frozen=True)
class Piece:
    """Words at ``begin`` to ``end``: a constant, explicit values, or a ramp of ``base`` plus the position."""

    begin: int
    end: int
    base: int = 0
    constant: int | None = None
    values: Words | None = None

    @property
    def count(self) -> int:
        """Number of words."""
        return self.end - self.begin

    def part(self, begin: int, end: int) -> Piece:
        """The words of a part of the piece, at their own positions."""
        if self.values is None:
            return replace(self, begin=begin, end=end)
        values = self.values[begin - self.begin : end - self.begin]
        return replace(self, begin=begin, end=end, values=values)

    def moved(self, by: int) -> Piece:
        """The same words at positions ``by`` higher."""
        base = (self.base - by) % _WORD_LIMIT
        return replace(self, begin=self.begin + by, end=self.end + by, base=base)

    def words(self) -> Words:
        """The words themselves. Only for pieces that are small enough to be written down."""
        if self.values is not None:
            return self.values
        if self.constant is not None:
            return np.full(self.count, self.constant, np.uint64)
        return np.arange(self.begin, self.end, dtype=np.uint64) + np.uint64(self.base)

    def differing(self, base: int) -> Iterator[Piece]:
        """The parts of the piece that are not ``base`` plus the position."""
        if self.values is not None:
            yield from self._differing_values(base)
        elif self.constant is not None:
            same = (self.constant - base) % _WORD_LIMIT
            yield from without(self, same, same + 1)
        elif self.base != base:
            yield self

    def _differing_values(self, base: int) -> Iterator[Piece]:
        expected = np.arange(self.begin, self.end, dtype=np.uint64) + np.uint64(base)
        wrong = np.flatnonzero(self.words() != expected)
        for run in np.split(wrong, np.flatnonzero(np.diff(wrong) != 1) + 1):
            if run.size:
                yield self.part(self.begin + int(run[0]), self.begin + int(run[-1]) + 1)


def without(piece: Piece, begin: int, end: int) -> Iterator[Piece]:
    """The piece without the positions ``begin`` to ``end``."""
    if piece.begin < min(begin, piece.end):
        yield piece.part(piece.begin, min(begin, piece.end))
    if max(end, piece.begin) < piece.end:
        yield piece.part(max(end, piece.begin), piece.end)


class SparseMemory:
    """Pieces in the order of their positions, without overlap. What was never written is absent."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def write(self, piece: Piece) -> None:
        """Put a piece in place of what was there."""
        first, last = self._range(piece.begin, piece.end)
        kept = [part for old in self._pieces[first:last] for part in without(old, piece.begin, piece.end)]
        before = [part for part in kept if part.end <= piece.begin]
        after = [part for part in kept if part.begin >= piece.end]
        self._pieces[first:last] = [*before, piece, *after]

    def read(self, begin: int, end: int) -> list[Piece]:
        """The pieces of a range, cut to it."""
        first, last = self._range(begin, end)
        return [
            piece.part(max(piece.begin, begin), min(piece.end, end)) for piece in self._pieces[first:last]
        ]

    def clear(self) -> None:
        """Forget everything."""
        self._pieces = []

    def _range(self, begin: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_right(self._pieces, begin, key=lambda piece: piece.end)
        last = bisect.bisect_left(self._pieces, end, key=lambda piece: piece.begin)
        return first, max(first, last)


def sample(pieces: Iterable[Piece]) -> Differences:
    """How many words the pieces hold, and at most 4096 of them in runs of 512, spread evenly."""
    found = list(pieces)
    total = sum(piece.count for piece in found)
    runs = list(_sampled_runs(found, total))
    if not runs:
        return Differences(0, np.empty(0, np.int64), np.empty(0, np.uint64))
    positions: Positions = np.concatenate([np.arange(run.begin, run.end, dtype=np.int64) for run in runs])
    return Differences(total, positions, np.concatenate([run.words() for run in runs]))


def sampled_windows(total: int) -> list[tuple[int, int]]:
    """Which of ``total`` words, counted one behind the other, make the sample: begin and end of each run."""
    if total <= LARGEST_SAMPLE:
        return [(0, total)]
    runs = LARGEST_SAMPLE // _SAMPLED_RUN
    begins = [(total - _SAMPLED_RUN) * number // (runs - 1) for number in range(runs)]
    return [(begin, begin + _SAMPLED_RUN) for begin in begins]


def _sampled_runs(pieces: list[Piece], total: int) -> Iterator[Piece]:
    windows, passed, number = sampled_windows(total), 0, 0
    for piece in pieces:
        while number < len(windows):
            begin, end = windows[number]
            first, last = max(begin, passed), min(end, passed + piece.count)
            if first < last:
                yield piece.part(piece.begin + first - passed, piece.begin + last - passed)
            if end > passed + piece.count:
                break
            number += 1
        passed += piece.count
