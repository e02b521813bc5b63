"""What isn't finite in each encoding: against every bit pattern, and planted at the borders of blocks."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_diag.weights.encodings import (
    BLOCK_BYTES,
    ENCODINGS,
    Screen,
    first_nan,
    first_nonfinite,
    first_not_positive,
    name_of_value,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# The dtypes that safetensors 0.8.0 reads.
DTYPES_OF_THE_FORMAT = {
    *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"),
    *("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"),
    *("F16", "BF16", "F32", "F64", "C64"),
}


def test_every_dtype_of_the_format_is_known() -> None:
    assert set(ENCODINGS) == DTYPES_OF_THE_FORMAT


def small_float(exponent_bits: int, mantissa_bits: int, top: str) -> Callable[[int], float]:
    """A decoder written from the definition, as the oracle: ``top`` says what the highest exponent means."""
    bias = 2 ** (exponent_bits - 1) - 1

    def decode(word: int) -> float:
        sign = -1.0 if word >> (exponent_bits + mantissa_bits) & 1 else 1.0
        exponent = word >> mantissa_bits & (2**exponent_bits - 1)
        mantissa = word & (2**mantissa_bits - 1)
        if top == "ieee" and exponent == 2**exponent_bits - 1:
            return math.nan if mantissa else sign * math.inf
        if top == "fn" and exponent == 2**exponent_bits - 1 and mantissa == 2**mantissa_bits - 1:
            return math.nan
        if top == "fnuz" and sign < 0 and exponent == 0 and mantissa == 0:
            return math.nan
        return sign * math.ldexp(mantissa / 2**mantissa_bits + (exponent > 0), max(exponent, 1) - bias)

    return decode


def bfloat16(word: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", word << 16))[0]
    return value


DECODERS: dict[str, Callable[[int], float]] = {
    "F8_E4M3": small_float(4, 3, "fn"),
    "F8_E5M2": small_float(5, 2, "ieee"),
    "F8_E4M3FNUZ": small_float(4, 3, "fnuz"),
    "F8_E5M2FNUZ": small_float(5, 2, "fnuz"),
    "F8_E8M0": lambda word: math.nan if word == 0xFF else math.ldexp(1.0, word - 127),
    "F16": small_float(5, 10, "ieee"),
    "BF16": bfloat16,
}


@pytest.mark.parametrize("dtype", DECODERS)
def test_every_bit_pattern_is_judged_like_the_definition_does(dtype: str) -> None:
    encoding, decode = ENCODINGS[dtype], DECODERS[dtype]
    for word in range(2**encoding.bits):
        value = decode(word)
        block = np.frombuffer(word.to_bytes(encoding.word_bytes, "little"), np.uint8)
        assert (first_nonfinite(block, encoding) == 0) is not math.isfinite(value), hex(word)
        assert Screen(encoding, block).is_finite(encoding.word_bytes) is math.isfinite(value), hex(word)
        assert (first_nan(block, encoding) == 0) is math.isnan(value), hex(word)
        if math.isfinite(value):
            assert (first_not_positive(block, encoding) == 0) is (value <= 0), hex(word)
        else:
            expected = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
            assert name_of_value(word, encoding) == expected


NAN_AND_INF = {
    "F8_E4M3": ["7f", "ff"],
    "F8_E5M2": ["7c", "fc", "7d", "ff"],
    "F8_E4M3FNUZ": ["80"],
    "F8_E5M2FNUZ": ["80"],
    "F8_E8M0": ["ff"],
    "F16": ["007c", "00fc", "017c", "ffff"],
    "BF16": ["807f", "80ff", "c07f", "ffff"],
    "F32": ["0000807f", "000080ff", "0000c07f", "010080ff"],
    "C64": ["0000807f", "0000c07f"],
    "F64": ["000000000000f07f", "000000000000f0ff", "000000000000f87f", "010000000000f0ff"],
}


def test_every_encoding_that_can_be_nonfinite_is_tried() -> None:
    assert {dtype for dtype, encoding in ENCODINGS.items() if encoding.can_be_nonfinite} == set(NAN_AND_INF)


@pytest.mark.parametrize(("dtype", "pattern"), [(d, p) for d, ps in NAN_AND_INF.items() for p in ps])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_planted_value_in_a_block_is_found_where_it_is(dtype: str, pattern: str, place: str) -> None:
    encoding = ENCODINGS[dtype]
    block = np.full(BLOCK_BYTES, 0x11, np.uint8)
    count = BLOCK_BYTES // encoding.word_bytes
    index = {"first": 0, "middle": count // 2, "last": count - 1}[place]
    assert first_nonfinite(block, encoding) is None
    at = index * encoding.word_bytes
    block[at : at + encoding.word_bytes] = np.frombuffer(bytes.fromhex(pattern), np.uint8)
    assert first_nonfinite(block, encoding) == index
    screen = Screen(encoding, block)
    assert not screen.is_finite(BLOCK_BYTES)
    assert not screen.is_finite(at + encoding.word_bytes)
    block[at : at + encoding.word_bytes] = 0x11
    assert screen.is_finite(BLOCK_BYTES)


@pytest.mark.parametrize("dtype", sorted(DTYPES_OF_THE_FORMAT - set(NAN_AND_INF)))
def test_integers_and_the_smallest_floats_are_always_finite(dtype: str) -> None:
    every_byte = np.arange(256, dtype=np.uint8)
    assert first_nonfinite(every_byte, ENCODINGS[dtype]) is None
    assert first_nan(every_byte, ENCODINGS[dtype]) is None


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2"])
def test_zero_and_negative_scales_are_found(dtype: str) -> None:
    width = ENCODINGS[dtype].word_bytes
    good = bytes(width - 1) + b"\x38"
    for bad in (bytes(width), bytes(width - 1) + b"\x80", bytes(width - 1) + b"\xb8"):
        block = np.frombuffer(good * 3 + bad + good, np.uint8)
        assert first_not_positive(block, ENCODINGS[dtype]) == 3
    assert first_not_positive(np.frombuffer(good * 3, np.uint8), ENCODINGS[dtype]) is None


IEEE: dict[str, tuple[Any, Any]] = {
    "F32": (np.float32, np.uint32),
    "F64": (np.float64, np.uint64),
    "C64": (np.float32, np.uint32),
}


@pytest.mark.parametrize("dtype", IEEE)
@given(st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_wide_floats_are_judged_as_the_processor_does(dtype: str, bits: int) -> None:
    float_, unsigned = IEEE[dtype]
    for word in (bits, bits | 0x7FF0_0000_0000_0000, bits | 0x7F80_0000):
        value = np.array([word & np.iinfo(unsigned).max], unsigned)
        finite = bool(np.isfinite(value.view(float_)).all())
        block = value.view(np.uint8)
        assert Screen(ENCODINGS[dtype], block).is_finite(block.size) is finite
        assert (first_nonfinite(block, ENCODINGS[dtype]) is None) is finite
