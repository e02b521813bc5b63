"""The dtypes of safetensors, and what isn't finite in each by that encoding's own rules.

Sources: IEEE 754; "FP8 Formats for Deep Learning" (e4m3fn, e5m2); the FNUZ variants and e8m0 as in the OCP
Microscaling specification and ONNX. Floats of 4 and 6 bits and integers have no value that isn't finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The size of a block stays inside a core's cache: a block is read, hashed and scanned while it is there.
BLOCK_BYTES = 256 * 1024

Bytes = NDArray[np.uint8]
Words = NDArray[Any]


@dataclass(frozen=True)
class Encoding:
    """How an element is laid out.

    ``exponent`` is the mask whose bits are all set in exactly the values that aren't finite, ``nan_only`` the
    single pattern where there is just one such value. ``word_bytes`` is the unit that both apply to (half an
    element for complex numbers).
    """

    bits: int
    word_bytes: int = 1
    exponent: int | None = None
    nan_only: int | None = None
    mantissa: int = 0
    is_float: bool = False

    @property
    def can_be_nonfinite(self) -> bool:
        """Whether the encoding has a NaN or an infinity at all."""
        return self.exponent is not None or self.nan_only is not None


F8_E8M0 = Encoding(8, nan_only=0xFF, is_float=True)

ENCODINGS: dict[str, Encoding] = {
    "BOOL": Encoding(8),
    "U8": Encoding(8),
    "I8": Encoding(8),
    "U16": Encoding(16),
    "I16": Encoding(16),
    "U32": Encoding(32),
    "I32": Encoding(32),
    "U64": Encoding(64),
    "I64": Encoding(64),
    "F4": Encoding(4, is_float=True),
    "F6_E2M3": Encoding(6, is_float=True),
    "F6_E3M2": Encoding(6, is_float=True),
    "F8_E4M3": Encoding(8, exponent=0x7F, is_float=True, mantissa=0x7F),
    "F8_E5M2": Encoding(8, exponent=0x7C, is_float=True, mantissa=0x03),
    "F8_E4M3FNUZ": Encoding(8, nan_only=0x80, is_float=True),
    "F8_E5M2FNUZ": Encoding(8, nan_only=0x80, is_float=True),
    "F8_E8M0": F8_E8M0,
    "F16": Encoding(16, 2, exponent=0x7C00, mantissa=0x03FF, is_float=True),
    "BF16": Encoding(16, 2, exponent=0x7F80, mantissa=0x007F, is_float=True),
    "F32": Encoding(32, 4, exponent=0x7F80_0000, mantissa=0x007F_FFFF, is_float=True),
    "F64": Encoding(64, 8, exponent=0x7FF0_0000_0000_0000, mantissa=0x000F_FFFF_FFFF_FFFF, is_float=True),
    "C64": Encoding(64, 4, exponent=0x7F80_0000, mantissa=0x007F_FFFF, is_float=True),
}

_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED: dict[int, type[np.signedinteger[Any]]] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def words(block: Bytes, encoding: Encoding) -> Words:
    """The block as unsigned integers of the word size. Files are little-endian, and so is the machine."""
    return block.view(_UNSIGNED[encoding.word_bytes])


def first_nonfinite(block: Bytes, encoding: Encoding, scratch: Bytes) -> int | None:
    """Index of the first word that isn't finite, or None. ``scratch`` is as large as the block at least."""
    if block.size == 0 or not encoding.can_be_nonfinite:
        return None
    values = words(block, encoding)
    if encoding.nan_only is not None:
        hits = np.equal(values, encoding.nan_only, out=scratch[: values.size].view(np.bool_))
        return int(hits.argmax()) if hits.any() else None
    mask = values.dtype.type(encoding.exponent)
    exponents = np.bitwise_and(values, mask, out=words(scratch[: block.size], encoding))
    return int((exponents == mask).argmax()) if exponents.max() == mask else None


class Screen:
    """Says fast whether a buffer holds only finite values: its views are made once, not for each block."""

    def __init__(self, encoding: Encoding, buffer: Bytes, scratch: Bytes) -> None:
        self._size = buffer.size
        self._width = encoding.word_bytes
        self._values, self._scratch = words(buffer, encoding), words(scratch, encoding)
        self._single = encoding.exponent is None
        pattern = encoding.nan_only if encoding.exponent is None else encoding.exponent
        self._pattern = self._values.dtype.type(pattern or 0)

    def is_finite(self, length: int) -> bool:
        """Whether the first ``length`` bytes of the buffer hold only finite values."""
        values, scratch = self._values, self._scratch
        if length != self._size:
            values, scratch = values[: length // self._width], scratch[: length // self._width]
        if self._single:
            np.bitwise_xor(values, self._pattern, out=scratch)
            return bool(np.minimum.reduce(scratch) != 0)
        np.bitwise_and(values, self._pattern, out=scratch)
        return bool(np.maximum.reduce(scratch) != self._pattern)


def first_nan(block: Bytes, encoding: Encoding) -> int | None:
    """Index of the first word that is NaN (infinities pass), or None."""
    if block.size == 0 or not encoding.can_be_nonfinite:
        return None
    values = words(block, encoding)
    if encoding.nan_only is not None:
        hits = values == encoding.nan_only
    else:
        mask, mantissa = values.dtype.type(encoding.exponent), values.dtype.type(encoding.mantissa)
        hits = ((values & mask) == mask) & ((values & mantissa) != 0)
    return int(hits.argmax()) if hits.any() else None


def first_not_positive(block: Bytes, encoding: Encoding) -> int | None:
    """Index of the first word that is zero or negative, or None.

    All float encodings with a sign keep it in the highest bit, so a positive value is a positive integer;
    e8m0 has neither sign nor zero.
    """
    if block.size == 0 or encoding is F8_E8M0 or not encoding.is_float or encoding.bits < 8:
        return None
    values = block.view(_SIGNED[encoding.word_bytes])
    return int((values <= 0).argmax()) if values.min() <= 0 else None


def name_of_value(word: int, encoding: Encoding) -> str:
    """What a word that isn't finite is: ``NaN``, ``+Inf`` or ``-Inf``."""
    if encoding.nan_only is not None or encoding.exponent is None or word & encoding.mantissa:
        return "NaN"
    sign = 1 << (encoding.word_bytes * 8 - 1)
    return "-Inf" if word & sign else "+Inf"
