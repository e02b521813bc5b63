"""The dtypes of safetensors, and what isn't finite in each by that encoding's own rules.

Sources: IEEE 754; "FP8 Formats for Deep Learning" (e4m3fn, e5m2); the FNUZ variants and e8m0 as in the OCP
Microscaling specification and ONNX. Floats of 4 and 6 bits and integers have no value that isn't finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A block is read, hashed and scanned while it is in a core's cache; smaller ones cost more calls than they
# save (tests/bench/gpu_diag).
BLOCK_BYTES = 512 * 1024

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


def first_nonfinite(block: Bytes, encoding: Encoding) -> int | None:
    """Index of the first word that isn't finite, or None."""
    if block.size == 0 or not encoding.can_be_nonfinite:
        return None
    values = words(block, encoding)
    if encoding.nan_only is not None:
        hits = values == encoding.nan_only
    else:
        mask = values.dtype.type(encoding.exponent)
        hits = (values & mask) == mask
    return int(hits.argmax()) if hits.any() else None


class Screen:
    """Says fast whether a buffer holds only finite values: its views are made once, not for each block.

    What isn't finite lies at the ends of the integers: without the sign, from the exponent's mask upwards
    (the mantissa stands below). So two searches for the largest word, as signed and as unsigned integer, do
    without writing anything down; one is enough for an encoding with a single such value.
    """

    def __init__(self, encoding: Encoding, buffer: Bytes) -> None:
        self._size, self._width = buffer.size, encoding.word_bytes
        signed = buffer.view(_SIGNED[self._width])
        unsigned = words(buffer, encoding)
        sign = 1 << (8 * self._width - 1)
        self._smallest: Words | None = None
        self._largest: tuple[tuple[Words, int], ...] = ()
        if encoding.exponent is not None:
            self._largest = ((signed, encoding.exponent), (unsigned, sign | encoding.exponent))
        elif encoding.nan_only == sign:
            self._smallest = signed
        elif encoding.nan_only is not None:
            self._largest = ((unsigned, encoding.nan_only),)

    def is_finite(self, length: int) -> bool:
        """Whether the first ``length`` bytes of the buffer hold only finite values."""
        count = length // self._width
        for words_, first in self._largest:
            part = words_ if length == self._size else words_[:count]
            if int(np.maximum.reduce(part)) >= first:
                return False
        if self._smallest is None:
            return True
        part = self._smallest if length == self._size else self._smallest[:count]
        return bool(np.minimum.reduce(part) != np.iinfo(part.dtype).min)


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
