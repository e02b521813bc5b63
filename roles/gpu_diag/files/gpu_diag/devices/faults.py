"""Faults of simulated devices: what may happen to the words of a transfer, and when.

A fault is an effect and, after a slash, a condition: ``zeroed/one_source``. Several are joined by ``+``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_diag.devices.memory import Piece, without
from gpu_diag.devices.protocol import How
from gpu_diag.p2p.words import ALL_ONES, Message, data_word

_LARGE_WORDS = (64 << 20) // 8
_MOST_HITS_OF_A_TRANSFER = 200
_MOST_FLIPS_OF_A_TRANSFER = 200
_PAGES = {"4k": 4 << 10, "64k": 64 << 10, "2m": 2 << 20, "1g": 1 << 30}
_ONCE_IN = re.compile(r"once_in_(n|\d+)")


class UnknownFaultError(ValueError):
    """There is no such fault; the message says which there are."""


@dataclass(frozen=True)
class Transfer:
    """A message under way: how, how many others move at once, whether its opposite does, what moved
    before."""

    message: Message
    how: How
    together: int
    opposite: bool
    devices: int
    words_before: int


@dataclass(frozen=True)
class Write:
    """Words on their way into an arena. ``seen_by``: only that device sees them there, the owner does not."""

    owner: int
    piece: Piece
    seen_by: int | None = None


ReadSource = Callable[[int, int], list[Piece]]
Effect = Callable[[Transfer, Write, ReadSource], list[Write]]
Condition = Callable[[Transfer], bool]


@dataclass
class Fault:
    """One fault of a simulated machine. ``period``: it hits one word in so many instead of whole
    transfers."""

    name: str
    effect: Effect
    condition: Condition
    period: int | None = None
    phase: int = 0

    def act(self, transfer: Transfer, writes: Sequence[Write], source: ReadSource) -> list[Write]:
        """The writes as they become under the fault. ``source`` reads the source's arena."""
        if not self.condition(transfer):
            return list(writes)
        changed: list[Write] = []
        for write in writes:
            for part, is_hit in self._split(transfer, write):
                changed += self.effect(transfer, part, source) if is_hit else [part]
        return changed

    def _split(self, transfer: Transfer, write: Write) -> Iterator[tuple[Write, bool]]:
        if self.period is None:
            yield write, True
            return
        piece = write.piece
        begin = transfer.words_before + piece.begin - transfer.message.begin
        first = begin + (self.phase - begin) % self.period
        rest: list[Piece] = [piece]
        for number in range(first, begin + piece.count, self.period)[:_MOST_HITS_OF_A_TRANSFER]:
            position = piece.begin + number - begin
            yield Write(write.owner, piece.part(position, position + 1), write.seen_by), True
            last = rest.pop()
            rest += without(last, position, position + 1)
        for part in rest:
            yield Write(write.owner, part, write.seen_by), False


@dataclass
class _Maker:
    """Makes faults from a seed; what is drawn once holds for the whole run, as on a broken machine."""

    generator: random.Random
    devices: int
    words_tested: int
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)

    def effects(self) -> dict[str, Effect]:
        pages = {
            f"wrong_page_{name}": self._wrong_page(size // 8 * self.generator.choice((-1, 1)))
            for name, size in _PAGES.items()
        }
        source_pages = {
            f"wrong_source_page_{name}": self._wrong_source_page(size // 8 * self.generator.choice((-1, 1)))
            for name, size in _PAGES.items()
        }
        swapped = {
            f"swapped_pages_{name}": _swapped_pages(size // 8)
            for name, size in _PAGES.items()
            if size < _LARGE_WORDS * 8
        }
        return {
            "dropped": lambda transfer, write, source: [],
            "zeroed": _constant(0),
            "all_ones": _constant(int(ALL_ONES)),
            **pages,
            **source_pages,
            **swapped,
            "crosstalk": self._crosstalk,
            "stale": self._stale,
            "bit_flips": self._bit_flips(10.0 ** self.generator.uniform(-7, -3)),
            "garbage": self._garbage,
            "mirror": lambda transfer, write, source: [
                Write(write.owner, write.piece, transfer.message.source)
            ],
            "other_memory": self._other_memory,
            "host_memory": lambda transfer, write, source: [Write(_HOST_ARENA, _fold(write.piece))],
        }

    def conditions(self) -> dict[str, Condition]:
        source = self.generator.randrange(self.devices)
        other = self.generator.choice([d for d in range(self.devices) if d != source] or [source])
        pairs = self.devices * (self.devices - 1)
        return {
            "one_source": lambda transfer: transfer.message.source == source,
            "one_direction": lambda transfer: (
                (transfer.message.source, transfer.message.destination) == (source, other)
            ),
            "all_pairs": lambda transfer: transfer.together == pairs,
            "both_ways": lambda transfer: transfer.opposite,
            "large": lambda transfer: transfer.message.count >= _LARGE_WORDS,
            "odd": lambda transfer: transfer.message.count % 2 == 1,
            "engine": lambda transfer: transfer.how == "copy_engine",
            "stores": lambda transfer: transfer.how == "store",
        }

    def fault(self, name: str) -> Fault:
        effect_name, _, condition_name = name.partition("/")
        effects, conditions = self.effects(), self.conditions()
        once = _ONCE_IN.fullmatch(condition_name)
        if effect_name not in effects or not (once or condition_name in ("", *conditions)):
            raise UnknownFaultError(f"there is no fault {name!r}: `--simulate list` names them")
        if once:
            period = self.generator.randint(1, self.words_tested) if once[1] == "n" else max(1, int(once[1]))
            phase = self.generator.randrange(min(period, self.words_tested))
            return Fault(name, effects[effect_name], _always, period, phase)
        return Fault(name, effects[effect_name], conditions.get(condition_name, _always))

    def _wrong_page(self, by: int) -> Effect:
        return lambda transfer, write, source: [Write(write.owner, write.piece.moved(by), write.seen_by)]

    def _wrong_source_page(self, by: int) -> Effect:
        def effect(transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
            message = transfer.message
            shift = message.source_begin - message.begin
            begin, end = write.piece.begin + shift + by, write.piece.end + shift + by
            read = [piece.moved(-shift - by) for piece in source(begin, end)]
            nothing = [piece for piece in [write.piece] for piece in _gaps(piece, read)]
            return [Write(write.owner, piece) for piece in (*read, *map(self._random_words, nothing))]

        return effect

    def _crosstalk(self, transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
        message = transfer.message
        others = [
            d for d in range(max(transfer.devices, 3)) if d not in (message.source, message.destination)
        ]
        base = data_word(message.nonce, self.generator.choice(others), message.destination, 0)
        return [Write(write.owner, Piece(write.piece.begin, write.piece.end, base))]

    def _stale(self, transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
        message = transfer.message
        pair = (message.source, message.destination)
        before = self.delivered.get(pair)
        self.delivered[pair] = message.nonce
        if before is None or before == message.nonce:
            return [write]
        base = data_word(before, *pair, 0)
        return [Write(write.owner, Piece(write.piece.begin, write.piece.end, base))]

    def _bit_flips(self, rate: float) -> Effect:
        def effect(transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
            piece = write.piece
            random_ = np.random.default_rng(self.generator.getrandbits(64))
            count = min(int(random_.poisson(piece.count * rate)), _MOST_FLIPS_OF_A_TRANSFER)
            writes = [write]
            for position in {int(at) for at in random_.integers(piece.begin, piece.end, count)}:
                flipped = int(piece.part(position, position + 1).words()[0])
                for bit in random_.integers(0, 64, 1 + int(random_.integers(0, 2))):
                    flipped ^= 1 << int(bit)
                writes.append(Write(write.owner, Piece(position, position + 1, constant=flipped)))
            return writes

        return effect

    def _garbage(self, transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
        return [Write(write.owner, self._random_words(write.piece))]

    def _random_words(self, piece: Piece) -> Piece:
        # A random constant far from zero and from all words that mean something stands for much garbage.
        if piece.count > 1 << 16:
            return Piece(piece.begin, piece.end, constant=self.generator.getrandbits(63) | 1)
        random_ = np.random.default_rng(self.generator.getrandbits(64))
        return Piece(piece.begin, piece.end, values=random_.integers(1, 1 << 63, piece.count, np.uint64))

    def _other_memory(self, transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
        others = [d for d in range(transfer.devices) if d not in (write.owner, transfer.message.source)]
        target = self.generator.choice(others) if others else transfer.message.source
        return [Write(target, write.piece)]


_HOST_ARENA = -1
_HOST_WORDS = (64 << 20) // 8


def _fold(piece: Piece) -> Piece:
    """As much of a piece as fits into the host's arena, from a place inside it on."""
    begin = piece.begin % (_HOST_WORDS // 2)
    return piece.part(piece.begin, min(piece.end, piece.begin + _HOST_WORDS - begin)).moved(
        begin - piece.begin
    )


def _always(transfer: Transfer) -> bool:
    return True


def _constant(word: int) -> Effect:
    return lambda transfer, write, source: [
        Write(write.owner, Piece(write.piece.begin, write.piece.end, constant=word))
    ]


def _swapped_pages(words: int) -> Effect:
    """Each message's first two whole pages are exchanged: nothing leaves its place by more than a page."""

    def effect(transfer: Transfer, write: Write, source: ReadSource) -> list[Write]:
        piece, begin = write.piece, -(-write.piece.begin // words) * words
        if begin + 2 * words > piece.end:
            return [write]
        first, second = piece.part(begin, begin + words), piece.part(begin + words, begin + 2 * words)
        moved = [first.moved(words), second.moved(-words)]
        kept = list(without(piece, begin, begin + 2 * words))
        return [Write(write.owner, part, write.seen_by) for part in (*kept, *moved)]

    return effect


def _gaps(piece: Piece, covering: Sequence[Piece]) -> list[Piece]:
    left = [piece]
    for cover in covering:
        left = [part for one in left for part in without(one, cover.begin, cover.end)]
    return left


def make_faults(text: str, seed: int, devices: int, words_tested: int) -> list[Fault]:
    """The faults that a text names (``zeroed/one_source+stale``). Raises UnknownFaultError."""
    maker = _Maker(random.Random(seed), devices, words_tested)
    return [maker.fault(name) for name in text.split("+")]


def fault_names() -> list[str]:
    """All effects, then all conditions as they are written behind an effect."""
    maker = _Maker(random.Random(0), 3, 1)
    conditions = [*maker.conditions(), "once_in_n"]
    return [*maker.effects(), *(f"zeroed/{condition}" for condition in conditions)]
