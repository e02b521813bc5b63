"""The structure of a GGUF file (versions 2 and 3): every tensor inside the file. Values are not judged.

Source: the GGUF description of ggml, with the block sizes of its types. Lengths in the file are never
trusted: what they promise is compared with what is there before anything is read.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from gpu_diag.weights.faults import Fault, shown

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _U32 = 8, 9, 4
_MOST_STRINGS = 10_000_000
_MOST_TENSORS = 1_000_000
_LONGEST_NAME_BYTES = 1024
_MOST_DIMENSIONS = 8
_WINDOW_BYTES = 1024 * 1024
# ggml type: (elements of a block, bytes of a block).
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class _FormatError(ValueError):
    def __init__(
        self, class_: str, sentence: str, tensor: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.class_, self.tensor, self.offset = class_, tensor, offset


@dataclass(frozen=True)
class _TensorInfo:
    name: str
    bytes_: int | None
    offset: int


class _Reader:
    """Reads forward through the head of a file, through a window of 1 MiB."""

    def __init__(self, descriptor: int, name: str, size: int) -> None:
        self._descriptor, self._name, self._size = descriptor, name, size
        self._window, self._window_at = b"", 0
        self.position = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes (at most a window's)."""
        self._check(count)
        start = self.position - self._window_at
        if start < 0 or start + count > len(self._window):
            self._window = os.pread(self._descriptor, _WINDOW_BYTES, self.position)
            self._window_at, start = self.position, 0
        taken = self._window[start : start + count]
        if len(taken) != count:
            raise OSError(0, "it became shorter while it was read")
        self.position += count
        return taken

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes."""
        self._check(count)
        self.position += count

    def _check(self, count: int) -> None:
        if count > self._size - self.position:
            raise _FormatError(
                "truncated",
                f"{self._name} ends at byte {self._size}, inside its own header: truncated",
                None,
                self._size,
            )

    def number(self, form: str) -> int:
        """The next little-endian integer of a ``struct`` form."""
        value: int = struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]
        return value

    def fail(self, what: str) -> _FormatError:
        """An error at the present position."""
        return _FormatError("bad_header", f"{self._name} {what} (byte {self.position})", None, self.position)


def check_gguf(descriptor: int, name: str, size: int) -> tuple[int, list[Fault]]:
    """Number of tensors, and the faults, of an open GGUF file. Raises OSError where it can't be read."""
    try:
        return _check(_Reader(descriptor, name, size), name, size)
    except _FormatError as error:
        return 0, [Fault(error.class_, str(error), name, error.tensor, error.offset)]


def _check(reader: _Reader, name: str, size: int) -> tuple[int, list[Fault]]:
    if reader.take(4) != _MAGIC:
        raise _FormatError("bad_header", f"{name} doesn't begin with GGUF", None, 0)
    version = reader.number("I")
    if version not in _VERSIONS:
        raise _FormatError(
            "unknown_version", f"{name} is of GGUF version {version}, known are 2 and 3", None, 4
        )
    tensor_count, pair_count = reader.number("Q"), reader.number("Q")
    if tensor_count > _MOST_TENSORS or pair_count > _MOST_TENSORS:
        raise reader.fail(f"promises {tensor_count} tensors and {pair_count} entries")
    alignment = _read_pairs(reader, pair_count)
    infos = [_tensor_info(reader) for _ in range(tensor_count)]
    data_begin = -(-reader.position // alignment) * alignment
    return tensor_count, [
        fault for info in infos if (fault := _fault(info, name, data_begin, size, alignment))
    ]


def _read_pairs(reader: _Reader, count: int) -> int:
    alignment = 32
    for _ in range(count):
        key = reader.take(_string_length(reader))
        kind = reader.number("I")
        if key == b"general.alignment" and kind == _U32:
            alignment = reader.number("I")
            if alignment == 0 or alignment % 8:
                raise reader.fail(f"asks for an alignment of {alignment} bytes")
        else:
            _skip_value(reader, kind)
    return alignment


def _string_length(reader: _Reader) -> int:
    length = reader.number("Q")
    if length > _LONGEST_NAME_BYTES:
        raise reader.fail(f"has a name of {length} bytes")
    return length


def _skip_value(reader: _Reader, kind: int) -> None:
    if kind in _SCALAR_BYTES:
        reader.skip(_SCALAR_BYTES[kind])
    elif kind == _STRING:
        reader.skip(reader.number("Q"))
    elif kind == _ARRAY:
        _skip_array(reader)
    else:
        raise reader.fail(f"has an entry of the unknown type {kind}")


def _skip_array(reader: _Reader) -> None:
    kind, count = reader.number("I"), reader.number("Q")
    if kind in _SCALAR_BYTES:
        reader.skip(_SCALAR_BYTES[kind] * count)
    elif kind == _STRING and count <= _MOST_STRINGS:
        for _ in range(count):
            reader.skip(reader.number("Q"))
    else:
        raise reader.fail(f"has an array of {count} values of type {kind}")


def _tensor_info(reader: _Reader) -> _TensorInfo:
    name = shown(reader.take(_string_length(reader)).decode(errors="replace"))
    dimensions = reader.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise reader.fail(f"gives {name} {dimensions} dimensions")
    elements = 1
    for _ in range(dimensions):
        elements *= reader.number("Q")
    kind, offset = reader.number("I"), reader.number("Q")
    block = _BLOCKS.get(kind)
    if block is not None and elements % block[0]:
        raise reader.fail(f"gives {name} {elements} elements in blocks of {block[0]}")
    return _TensorInfo(name, elements // block[0] * block[1] if block else None, offset)


def _fault(info: _TensorInfo, file: str, data_begin: int, size: int, alignment: int) -> Fault | None:
    begin = data_begin + info.offset
    if info.bytes_ is None:
        return Fault("unknown_dtype", f"{info.name} in {file} is of an unknown type", file, info.name, begin)
    if info.offset % alignment:
        return Fault("bad_offsets", f"{info.name} in {file} isn't aligned", file, info.name, begin)
    if begin + info.bytes_ > size:
        sentence = f"{file} ends at byte {size}, {info.name} goes to byte {begin + info.bytes_}: truncated"
        return Fault("truncated", sentence, file, info.name, size)
    return None
