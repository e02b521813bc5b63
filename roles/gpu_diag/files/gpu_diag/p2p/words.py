"""Words of 64 bits that say where they belong: ``nonce16 | source4 | destination4 | index40``.

The index is the position (in words) in the destination's arena where the word belongs. Memory that nobody may
write to holds *guard* words: the complement of the nonce, the owner, and 15 in place of a destination. So
every word, wherever it turns up, tells who sent it where, in which iteration.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Positions = NDArray[np.int64]

WORD_BYTES = 8
INDEX_BITS = 40
GUARD = 0xF
# Pinned memory of the host is guarded as well, and has an owner's number of its own.
HOST = 0xE
MOST_DEVICES = 14
ALL_ONES = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_INDEX_MASK = np.uint64((1 << INDEX_BITS) - 1)


@dataclass(frozen=True)
class Message:
    """One transfer: ``count`` words from ``source_begin`` in one arena to ``begin`` in another (in words)."""

    nonce: int
    source: int
    destination: int
    source_begin: int
    begin: int
    count: int

    @property
    def end(self) -> int:
        """Position behind the last word."""
        return self.begin + self.count

    @property
    def first_word(self) -> int:
        """The word that belongs at ``begin``; the words after it count up."""
        return data_word(self.nonce, self.source, self.destination, self.begin)


def data_word(nonce: int, source: int, destination: int, index: int) -> int:
    """The word that belongs at ``index`` of the destination's arena."""
    return nonce << 48 | source << 44 | destination << 40 | index


def guard_word(nonce: int, owner: int, index: int) -> int:
    """The word that lies at ``index`` of an owner's arena where nothing may be written."""
    return data_word(nonce ^ 0xFFFF, owner, GUARD, index)


def choose_nonces(generator: random.Random) -> list[int]:
    """Nonces in random order, each used once: at least 4 bits apart from each other and from all complements.

    They are the extended Hamming code of length 16 (which holds each word's complement), one of each such
    pair.
    """
    code = _extended_hamming_code()
    halves = [word for word in code if word < 0x8000 and word != 0]
    chosen = [word if generator.random() < 0.5 else word ^ 0xFFFF for word in halves]
    generator.shuffle(chosen)
    return chosen


def _extended_hamming_code() -> list[int]:
    """All 16-bit words of even weight in which the positions of the set bits cancel out (XOR to 0)."""
    syndromes = [0] * 65536
    for word in range(1, 65536):
        low = word & -word
        syndromes[word] = syndromes[word ^ low] ^ (low.bit_length() - 1)
    return [word for word in range(65536) if syndromes[word] == 0 and word.bit_count() % 2 == 0]


@dataclass(frozen=True)
class Fields:
    """The fields of many words, each as an array."""

    nonce: NDArray[Any]
    source: NDArray[Any]
    destination: NDArray[Any]
    index: Positions


def fields_of(words: Words) -> Fields:
    """Take words apart."""
    return Fields(
        nonce=(words >> np.uint64(48)).astype(np.int64),
        source=(words >> np.uint64(44) & np.uint64(0xF)).astype(np.int64),
        destination=(words >> np.uint64(40) & np.uint64(0xF)).astype(np.int64),
        index=(words & _INDEX_MASK).astype(np.int64),
    )


def ramp(first_word: int, positions: Positions) -> Words:
    """``first_word`` plus each position."""
    return np.uint64(first_word) + positions.astype(np.uint64)


def bits_apart(one: Words, other: Words) -> NDArray[Any]:
    """In how many bits the words differ."""
    return count_bits(one ^ other)


def count_bits(words: Words) -> NDArray[Any]:
    """How many bits are set in each word: in pairs, fours, bytes, and in all (NumPy 1 has no call)."""
    pairs = words - (words >> np.uint64(1) & np.uint64(0x5555_5555_5555_5555))
    low_pairs = np.uint64(0x3333_3333_3333_3333)
    fours = (pairs & low_pairs) + (pairs >> np.uint64(2) & low_pairs)
    in_bytes = fours + (fours >> np.uint64(4)) & np.uint64(0x0F0F_0F0F_0F0F_0F0F)
    counts: NDArray[Any] = in_bytes * np.uint64(0x0101_0101_0101_0101) >> np.uint64(56)
    return counts
