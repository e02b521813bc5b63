"""The classifier on words that anything may have happened to: each is of exactly one class, and the right
one."""

from __future__ import annotations

import random

import numpy as np
from gpu_diag.p2p.classify import classify, classify_strays, page_multiple
from gpu_diag.p2p.words import Message, Positions, Words, choose_nonces, data_word, guard_word, ramp
from hypothesis import given, settings
from hypothesis import strategies as st

NONCES = choose_nonces(random.Random(1))
MESSAGE = Message(NONCES[0], 0, 1, source_begin=5_000_000, begin=1_000_003, count=100_000)
OLDER = frozenset(NONCES[1:40])


def wrong(positions: Positions, words: Words) -> tuple[Positions, Words]:
    """Only the words that differ from what should be there, as devices report them."""
    differs = words != ramp(MESSAGE.first_word - MESSAGE.begin, positions)
    return positions[differs], words[differs]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200), st.integers(0, 50_000))
@settings(max_examples=100, deadline=None)
def test_every_wrong_word_is_counted_once(values: list[int], offset: int) -> None:
    positions = np.arange(len(values), dtype=np.int64) + MESSAGE.begin + offset
    chosen, words = wrong(positions, np.array(values, np.uint64))
    findings = classify(MESSAGE, chosen, words, OLDER)
    assert sum(findings.resolved(frozenset()).values()) == chosen.size


@given(st.integers(0, 90_000), st.lists(st.integers(0, 63), min_size=1, max_size=2, unique=True))
@settings(max_examples=150, deadline=None)
def test_a_lone_word_with_one_or_two_flipped_bits_is_a_bitflip(offset: int, bits: list[int]) -> None:
    position = MESSAGE.begin + offset
    word = MESSAGE.first_word + offset
    for bit in bits:
        word ^= 1 << bit
    findings = classify(MESSAGE, np.array([position]), np.array([word], np.uint64), OLDER)
    assert dict(findings.resolved(frozenset())) == {"bitflip": 1}


distances = st.integers(-(2**27), 2**27).filter(lambda distance: distance != 0)


@given(distances, st.integers(0, 50_000), st.integers(4, 600))
@settings(max_examples=100, deadline=None)
def test_a_run_from_another_place_is_translated_by_its_distance(
    distance: int, offset: int, count: int
) -> None:
    positions = np.arange(count, dtype=np.int64) + MESSAGE.begin + offset
    index = positions + distance
    if index[0] < 0:
        return
    words = ramp(data_word(MESSAGE.nonce, 0, 1, 0), index)
    findings = classify(MESSAGE, positions, words, OLDER)
    assert dict(findings.resolved(frozenset())) == {"mistranslated": count}
    assert dict(findings.distances()) == {distance * 8: count}


@given(distances.filter(lambda distance: distance > -4_000_000), st.integers(4, 600))
@settings(max_examples=60, deadline=None)
def test_a_run_from_the_sources_guard_is_translated_as_well(distance: int, count: int) -> None:
    positions = np.arange(count, dtype=np.int64) + MESSAGE.begin
    source = positions - MESSAGE.begin + MESSAGE.source_begin + distance
    findings = classify(MESSAGE, positions, ramp(guard_word(MESSAGE.nonce, 0, 0), source), OLDER)
    assert dict(findings.classes) == {"mistranslated": count}
    assert dict(findings.distances()) == {distance * 8: count}


@given(st.sampled_from(sorted(OLDER)), st.integers(4, 300))
@settings(max_examples=60, deadline=None)
def test_words_of_an_earlier_nonce_are_stale(nonce: int, count: int) -> None:
    positions = np.arange(count, dtype=np.int64) + MESSAGE.begin
    words = ramp(data_word(nonce, 0, 1, 0), positions)
    assert dict(classify(MESSAGE, positions, words, OLDER).classes) == {"stale": count}


@given(st.integers(0, 13), st.integers(0, 13), st.integers(4, 300))
@settings(max_examples=60, deadline=None)
def test_words_of_another_pair_are_crosstalk(source: int, destination: int, count: int) -> None:
    positions = np.arange(count, dtype=np.int64) + MESSAGE.begin
    if (source, destination) == (MESSAGE.source, MESSAGE.destination):
        return
    words = ramp(data_word(MESSAGE.nonce, source, destination, 0), positions)
    assert dict(classify(MESSAGE, positions, words, OLDER).resolved(frozenset())) == {"crosstalk": count}


@given(st.integers(1, 500), st.integers(-(2**20), 2**20).filter(bool))
@settings(max_examples=60, deadline=None)
def test_strays_tell_where_they_belong(count: int, distance: int) -> None:
    positions = np.arange(count, dtype=np.int64) + 2_000_000
    words = ramp(data_word(MESSAGE.nonce, 0, 1, 0), positions - distance)
    findings = classify_strays(MESSAGE.nonce, 1, positions, words)
    assert dict(findings.classes) == {"misdirected": count}
    assert dict(findings.landed) == {(1, distance * 8): count}
    assert dict(findings.senders) == {(0, 1): count}


def test_distances_are_named_by_the_largest_page() -> None:
    names = [page_multiple(distance) for distance in (8, 4096, -65536, 2 << 20, 3 << 30)]
    assert names == [None, "4 KiB", "64 KiB", "2 MiB", "1 GiB"]
