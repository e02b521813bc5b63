"""What became of words that are not what they should be. Pure; knows nothing of devices and their faults.

A word that differs in one or two bits may be a flipped bit or, by chance of the layout, another valid word
(the one that a wrong page would give). Neighbours decide: a wrong page brings whole runs of words that are
all off by the same distance, flipped bits come alone. Words that have no neighbours to decide by are
*ambiguous* until it is known what the rest of the run showed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_diag.p2p.words import (
    ALL_ONES,
    GUARD,
    MOST_DEVICES,
    WORD_BYTES,
    Fields,
    Message,
    Positions,
    Words,
    bits_apart,
    fields_of,
    guard_word,
    ramp,
)

_MOST_FLIPPED_BITS = 2
_SHORTEST_RUN = 4
_LARGEST_INDEX = (2 << 30) // WORD_BYTES
_PAGE_SIZES = ((1 << 30, "1 GiB"), (2 << 20, "2 MiB"), (64 << 10, "64 KiB"), (4 << 10, "4 KiB"))

Mask = NDArray[np.bool_]
# A class and what tells one cause of it from another: a distance in words, or the pair that a word belongs
# to.
Cause = tuple[str, int]


@dataclass
class Findings:
    """How many words of each class, and for which causes.

    ``causes`` are certain ones, ``ambiguous`` words are flipped bits unless their cause is certain elsewhere.
    ``landed`` are strays, by the owner of the memory and the distance in bytes from their place in it (None
    where they belong into another memory), ``senders`` the pairs that strays belong to.
    """

    classes: Counter[str] = field(default_factory=Counter)
    causes: Counter[Cause] = field(default_factory=Counter)
    ambiguous: Counter[Cause] = field(default_factory=Counter)
    landed: Counter[tuple[int, int | None]] = field(default_factory=Counter)
    senders: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, other: Findings) -> None:
        """Take in more findings."""
        self.classes.update(other.classes)
        self.causes.update(other.causes)
        self.ambiguous.update(other.ambiguous)
        self.landed.update(other.landed)
        self.senders.update(other.senders)

    def resolved(self, certain: Set[Cause]) -> Counter[str]:
        """The classes, each ambiguous word being of its cause's class where that is certain, else flipped."""
        classes = Counter(self.classes)
        for cause, count in self.ambiguous.items():
            classes[cause[0] if cause in certain else "bitflip"] += count
        return +classes

    def distances(self) -> Counter[int]:
        """By how many bytes translated words are off."""
        return Counter(
            {value * WORD_BYTES: n for (name, value), n in self.causes.items() if name == "mistranslated"}
        )


def page_multiple(distance_bytes: int) -> str | None:
    """The largest page size that a distance is a multiple of, as a text, or None."""
    return next((name for size, name in _PAGE_SIZES if distance_bytes % size == 0), None)


def classify(message: Message, positions: Positions, words: Words, older: Set[int]) -> Findings:
    """Classify wrong words of a message, found at ``positions`` (in order); ``older`` are earlier nonces."""
    findings = Findings()
    if not positions.size:
        return findings
    expected = ramp(message.first_word - message.begin, positions)
    flipped = bits_apart(words, expected) <= _MOST_FLIPPED_BITS
    fields = fields_of(words)
    left = np.ones(words.size, np.bool_)

    def take(name: str, mask: Mask) -> None:
        findings.classes[name] += int((mask & left).sum())
        left[mask] = False

    def take_causes(name: str, mask: Mask, values: Positions) -> None:
        certain = mask & left & (~flipped | _in_runs(positions, values, mask & left))
        findings.causes.update(_counted(name, values[certain]))
        take(name, certain)
        unsure = mask & left
        findings.ambiguous.update(_counted(name, values[unsure]))
        left[unsure] = False

    take("dropped", words == ramp(guard_word(message.nonce, message.destination, 0), positions))
    take("zeroed", words == 0)
    take("aborted", words == ALL_ONES)
    distances, translated = _translations(message, positions, fields)
    take_causes("mistranslated", translated, distances)
    take_causes("crosstalk", _other_pair(message, fields), fields.source * (GUARD + 1) + fields.destination)
    take("bitflip", flipped)
    take("stale", _stale(positions, fields, older))
    take("garbage", left.copy())
    findings.classes = +findings.classes
    return findings


def _counted(name: str, values: Positions) -> Counter[Cause]:
    found, counts = np.unique(values, return_counts=True)
    return Counter({(name, int(value)): int(count) for value, count in zip(found, counts, strict=True)})


def _translations(message: Message, positions: Positions, fields: Fields) -> tuple[Positions, Mask]:
    """By how many words each word is off, and whether it is one of this pair, or of its source's guard, at
    all."""
    own = (
        (fields.nonce == message.nonce)
        & (fields.source == message.source)
        & (fields.destination == message.destination)
    )
    guards = (
        (fields.nonce == message.nonce ^ 0xFFFF)
        & (fields.source == message.source)
        & (fields.destination == GUARD)
    )
    wanted = positions + np.where(guards, message.source_begin - message.begin, 0)
    distances = fields.index - wanted
    return distances, (own | guards) & (distances != 0)


def _in_runs(positions: Positions, values: Positions, mask: Mask) -> Mask:
    """Those of the masked words that stand in a run of at least four neighbours with the same value."""
    result = np.zeros(positions.size, np.bool_)
    chosen = np.flatnonzero(mask)
    if chosen.size < _SHORTEST_RUN:
        return result
    breaks = (np.diff(positions[chosen]) != 1) | (np.diff(values[chosen]) != 0)
    edges = np.concatenate([[0], np.flatnonzero(breaks) + 1, [chosen.size]])
    lengths = np.diff(edges)
    result[chosen] = np.repeat(lengths >= _SHORTEST_RUN, lengths)
    return result


def _other_pair(message: Message, fields: Fields) -> Mask:
    data = (fields.nonce == message.nonce) & (fields.destination < MOST_DEVICES)
    guards = (fields.nonce == message.nonce ^ 0xFFFF) & (fields.destination == GUARD)
    same = (fields.source == message.source) & (fields.destination == message.destination)
    mask: Mask = ((data & ~same) | guards) & _is_possible(fields)
    return mask


def _is_possible(fields: Fields) -> Mask:
    mask: Mask = (fields.index < _LARGEST_INDEX) & (fields.source < GUARD)
    return mask


def _stale(positions: Positions, fields: Fields, older: Iterable[int]) -> Mask:
    """Words of earlier nonces; among much garbage some look so by chance, but not at their own place or in
    runs."""
    known = np.array([word for nonce in older for word in (nonce, nonce ^ 0xFFFF)], np.int64)
    possible = np.isin(fields.nonce, known) & _is_possible(fields)
    in_place = fields.index == positions
    mask: Mask = possible & (in_place | _in_runs(positions, fields.nonce, possible))
    return mask


def classify_strays(nonce: int, owner: int, positions: Positions, words: Words) -> Findings:
    """Classify words in an owner's guarded memory that are not its guard words: something wrote there."""
    findings = Findings()
    if not positions.size:
        return findings
    flipped = bits_apart(words, ramp(guard_word(nonce, owner, 0), positions)) <= _MOST_FLIPPED_BITS
    fields = fields_of(words)
    sent = (fields.nonce == nonce) & (fields.destination != GUARD)
    here = sent & (fields.destination == owner)
    findings.classes.update(bitflip=int((flipped & ~sent).sum()), misdirected=int((sent | ~flipped).sum()))
    findings.classes = +findings.classes
    pairs = zip(fields.source[sent].tolist(), fields.destination[sent].tolist(), strict=True)
    findings.senders.update(pairs)
    for (_, distance), count in _counted("", (positions - fields.index)[here]).items():
        findings.landed[owner, distance * WORD_BYTES] += count
    elsewhere = int(((sent | ~flipped) & ~here).sum())
    if elsewhere:
        findings.landed[owner, None] += elsewhere
    return findings
