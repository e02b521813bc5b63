"""The sparse memory of simulated devices against a plain array."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from gpu_diag.devices.memory import Piece, SparseMemory, sample, sampled_windows
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = 64


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    begin = draw(st.integers(0, SIZE - 1))
    end = draw(st.integers(begin + 1, SIZE))
    kind = draw(st.sampled_from(["ramp", "constant", "values"]))
    if kind == "ramp":
        return Piece(begin, end, base=draw(st.integers(0, 8)))
    if kind == "constant":
        return Piece(begin, end, constant=draw(st.integers(0, SIZE)))
    values = draw(st.lists(st.integers(0, SIZE), min_size=end - begin, max_size=end - begin))
    return Piece(begin, end, values=np.array(values, np.uint64))


@given(st.lists(pieces(), max_size=8), st.integers(0, 8), st.integers(0, SIZE - 1))
@settings(max_examples=150, deadline=None)
def test_writes_reads_and_differences_are_those_of_an_array(
    written: list[Piece], base: int, begin: int
) -> None:
    memory, array = SparseMemory(), np.arange(SIZE, dtype=np.uint64)
    memory.write(Piece(0, SIZE, base=0))
    for piece in written:
        memory.write(piece)
        array[piece.begin : piece.end] = piece.words()
    read = memory.read(begin, SIZE)
    assert np.array_equal(np.concatenate([piece.words() for piece in read]), array[begin:])
    found = sample(part for piece in read for part in piece.differing(base))
    expected = np.arange(SIZE, dtype=np.uint64) + np.uint64(base)
    wrong = np.flatnonzero(array[begin:] != expected[begin:]) + begin
    assert found.total == wrong.size
    assert np.array_equal(found.positions, wrong)
    assert np.array_equal(found.words, array[wrong])


@given(st.integers(1, 1 << 40))
@settings(max_examples=30, deadline=None)
def test_a_sample_is_spread_from_the_first_word_to_the_last(total: int) -> None:
    windows = sampled_windows(total)
    assert windows[0][0] == 0 and windows[-1][1] == total
    assert sum(end - begin for begin, end in windows) == min(total, 4096)
    assert all(a[1] <= b[0] for a, b in pairwise(windows))
