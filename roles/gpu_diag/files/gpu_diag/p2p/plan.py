"""What is moved between which devices, how and how often: a plan, made before anything runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

from gpu_diag.devices.protocol import ARENA_WORDS, How
from gpu_diag.p2p.words import WORD_BYTES, Message

# Sizes in words: one word, odd ones just beside the sizes of pages, up to 512 MiB.
SIZES = (1, 3, 511, 8_193, 262_147, 4_194_301, (512 << 20) // WORD_BYTES)
_SIZES_TOGETHER = (3, 262_147, 4_194_301)
_SIZES_OF_CONTROL = (1, 8_193, 4_194_301)
_LARGEST_PAGE_WORDS = (1 << 30) // WORD_BYTES
_MARGIN_WORDS = (4 << 20) // WORD_BYTES
_TRIES_OF_A_PLACE = 60
# For the estimate only: PCI Express 4.0 x16 gives three times this, a GPU's memory more than three times
# that.
_PATH_BYTES_PER_SECOND = 8e9
_MEMORY_BYTES_PER_SECOND = 300e9


Pair = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """Messages that move at the same time. ``mode``: control, one_way, both_ways, all_pairs."""

    mode: str
    how: How
    messages: tuple[Message, ...]

    @property
    def words(self) -> int:
        """Words that the step moves."""
        return sum(message.count for message in self.messages)


@dataclass(frozen=True)
class _Sweep:
    """One size, one way of moving, over all groups of pairs that move at the same time."""

    mode: str
    how: How
    groups: tuple[tuple[Pair, ...], ...]
    count: int


def make_plan(
    devices: int,
    offered: Callable[[int, int], bool],
    methods: Sequence[How],
    nonces: Sequence[int],
    generator: random.Random,
    rounds: int,
    arena_words: int = ARENA_WORDS,
    largest: int = SIZES[-1],
) -> list[Step]:
    """All steps: the control arm first, in each round what is riskiest (all pairs at once) last.

    Places are random. Each sweep over the pairs has a fresh nonce: within it, words differ by their pair
    anyway.
    """
    pairs = list(permutations(range(devices), 2))
    alone = tuple((pair,) for pair in pairs)
    sweeps = [_Sweep("control", "staged", alone, count) for count in _SIZES_OF_CONTROL]
    for _ in range(rounds):
        sweeps += _round([pair for pair in pairs if offered(*pair)], methods, largest)
    return [
        Step(sweep.mode, sweep.how, _place(nonce, group, sweep.count, generator, arena_words))
        for nonce, sweep in zip(nonces, sweeps, strict=False)
        for group in sweep.groups
    ]


def _round(pairs: list[Pair], methods: Sequence[How], largest: int = SIZES[-1]) -> list[_Sweep]:
    alone = tuple((pair,) for pair in pairs)
    opposite = tuple(((a, b), (b, a)) for a, b in pairs if a < b and (b, a) in pairs)
    sweeps = [_Sweep("one_way", how, alone, count) for count in SIZES if count <= largest for how in methods]
    sweeps += [_Sweep("both_ways", how, opposite, count) for count in _SIZES_TOGETHER for how in methods]
    if len(pairs) > 2:
        together = (tuple(pairs),)
        sweeps += [_Sweep("all_pairs", how, together, count) for count in _SIZES_TOGETHER for how in methods]
    return sweeps


def words_between_devices(devices: int, rounds: int) -> int:
    """How many words a plan moves between devices that all offer access, by two methods."""
    sweeps = _round(list(permutations(range(devices), 2)), ("copy_engine", "store"))
    return rounds * sum(sweep.count * len(group) for sweep in sweeps for group in sweep.groups)


def _place(
    nonce: int, pairs: Sequence[tuple[int, int]], count: int, generator: random.Random, arena_words: int
) -> tuple[Message, ...]:
    taken: list[tuple[int, int, int]] = []
    messages = []
    for source, destination in pairs:
        source_begin = _free_place(taken, source, count, generator, arena_words)
        begin = _free_place(taken, destination, count, generator, arena_words)
        messages.append(Message(nonce, source, destination, source_begin, begin, count))
    return tuple(messages)


def _free_place(
    taken: list[tuple[int, int, int]], device: int, count: int, generator: random.Random, arena_words: int
) -> int:
    """A random place that is free in all arenas, also a largest page off; where none is, free in its own."""
    last = arena_words - _MARGIN_WORDS - count
    for strict in (True, False):
        others = [(begin, end) for owner, begin, end in taken if strict or owner == device]
        for _ in range(_TRIES_OF_A_PLACE):
            begin = generator.randint(_MARGIN_WORDS, last)
            if not any(_collides(begin, begin + count, *other, strict) for other in others):
                taken.append((device, begin, begin + count))
                return begin
    raise ValueError(f"no place for {count} words is left in an arena")


def _collides(begin: int, end: int, other_begin: int, other_end: int, strict: bool) -> bool:
    shifts = (0, -_LARGEST_PAGE_WORDS, _LARGEST_PAGE_WORDS) if strict else (0,)
    return any(
        begin + shift < other_end + _MARGIN_WORDS and other_begin < end + shift + _MARGIN_WORDS
        for shift in shifts
    )


def estimated_seconds(steps: Sequence[Step], devices: int) -> float:
    """How long a plan takes on slow hardware: what crosses paths, and the arenas filled and compared."""
    moved = sum(step.words for step in steps) * WORD_BYTES
    guarded = len(steps) * devices * ARENA_WORDS * WORD_BYTES * 2
    return moved / _PATH_BYTES_PER_SECOND + guarded / _MEMORY_BYTES_PER_SECOND
