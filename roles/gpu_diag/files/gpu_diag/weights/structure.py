"""The structure of a safetensors file: its header against its own length. Never trusts a length it reads.

Source of the rules: the format's description and the checks of the safetensors library 0.8.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_diag.weights.encodings import ENCODINGS
from gpu_diag.weights.faults import Fault, shown

LARGEST_HEADER_BYTES = 32 * 1024 * 1024
_LENGTH_BYTES = 8
# So many take less than 300 MiB of memory; the largest published models have 100,000 over all their files.
_MOST_TENSORS = 250_000
_MOST_DIMENSIONS = 64
_LARGEST_DIMENSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor; ``begin`` and ``end`` are bytes from the start of the file."""

    name: str
    dtype: str
    begin: int
    end: int


@dataclass(frozen=True)
class Structure:
    """What a header says: the tensors by their place in the file, the faults, and where the data begins."""

    tensors: tuple[Tensor, ...]
    faults: tuple[Fault, ...]
    data_begin: int


class _HeaderError(ValueError):
    def __init__(self, class_: str, sentence: str, tensor: str | None = None, offset: int = 0) -> None:
        super().__init__(sentence)
        self.class_, self.tensor, self.offset = class_, tensor, offset


def read_structure(descriptor: int, name: str, size: int) -> Structure:
    """Check the header of an open safetensors file of ``size`` bytes. Raises OSError where reading fails."""
    try:
        return _structure(descriptor, name, size)
    except _HeaderError as error:
        return Structure((), (Fault(error.class_, str(error), name, error.tensor, error.offset),), 0)


def _structure(descriptor: int, name: str, size: int) -> Structure:
    header, data_begin = _read_header(descriptor, name, size)
    entries = _parse_header(header, name)
    tensors = sorted(
        (_tensor(key, entry, name, data_begin) for key, entry in entries.items() if key != "__metadata__"),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    return Structure(tuple(tensors), tuple(_layout_faults(tensors, name, data_begin, size)), data_begin)


def _read_header(descriptor: int, name: str, size: int) -> tuple[bytes, int]:
    if size < _LENGTH_BYTES:
        raise _HeaderError("truncated", f"{name} has {size} bytes: not even the length of its header")
    length = int.from_bytes(_read_exactly(descriptor, _LENGTH_BYTES, 0), "little")
    data_begin = _LENGTH_BYTES + length
    if length > LARGEST_HEADER_BYTES and data_begin <= size:
        raise _HeaderError(
            "header_too_large",
            f"{name} has a header of {length} bytes, this tool reads at most {LARGEST_HEADER_BYTES}",
        )
    if data_begin > size:
        raise _HeaderError(
            "truncated",
            f"{name} promises a header of {length} bytes and has {size} bytes in all: it is truncated, or "
            "no safetensors file",
        )
    header = _read_exactly(descriptor, length, _LENGTH_BYTES)
    if header.count(b"{") > _MOST_TENSORS:
        raise _HeaderError(
            "header_too_large",
            f"{name} has more than {_MOST_TENSORS} tensors, this tool reads so many at most",
        )
    # Each tensor has one brace and two brackets in at least 50 bytes; more only blows memory up.
    if (header.count(b"[") + header.count(b"{")) * 8 > len(header) + 64:
        raise _HeaderError("bad_header", f"the header of {name} is nested like no header of tensors")
    return header, data_begin


def _read_exactly(descriptor: int, length: int, offset: int) -> bytes:
    parts = []
    while length:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


class DuplicateKeyError(ValueError):
    """A key occurs twice in one JSON object; the message is the key."""


def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The pairs as a dictionary (``object_pairs_hook``). Raises DuplicateKeyError for a key that is twice."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateKeyError(key)
        found[key] = value
    return found


def _parse_header(header: bytes, name: str) -> dict[str, object]:
    if not header.startswith(b"{"):
        raise _HeaderError(
            "bad_header", f"the header of {name} doesn't begin with '{{'", offset=_LENGTH_BYTES
        )
    try:
        parsed = json.loads(header.decode(), object_pairs_hook=without_duplicates)
    except DuplicateKeyError as error:
        key = shown(str(error))
        raise _HeaderError("duplicate_key", f"the header of {name} has {key} twice", key) from error
    except (ValueError, RecursionError) as error:
        raise _HeaderError(
            "bad_header", f"the header of {name} is not JSON in UTF-8", offset=_LENGTH_BYTES
        ) from error
    return parsed if isinstance(parsed, dict) else {}


def _tensor(key: str, entry: object, file: str, data_begin: int) -> Tensor:
    label = shown(key)
    if not isinstance(entry, dict):
        raise _HeaderError("bad_header", f"{label} in the header of {file} is not an object", label)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape, _MOST_DIMENSIONS) or not _are_sizes(offsets, 2):
        raise _HeaderError("bad_header", f"dtype, shape or data_offsets of {label} in {file} can't be", label)
    assert isinstance(shape, list) and isinstance(offsets, list)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _HeaderError(
            "bad_offsets", f"the offsets of {label} in {file} aren't a begin and an end", label
        )
    begin, end = data_begin + offsets[0], data_begin + offsets[1]
    bits = _bits(dtype, shape)
    if bits is not None and bits != (end - begin) * 8:
        raise _HeaderError(
            "wrong_size",
            f"{label} in {file} has {end - begin} bytes, its shape of {dtype} makes {bits / 8:g}",
            label,
            begin,
        )
    return Tensor(key, dtype, begin, end)


def _are_sizes(value: object, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(item) is int and 0 <= item <= _LARGEST_DIMENSION for item in value)
    )


def _bits(dtype: str, shape: list[int]) -> int | None:
    encoding = ENCODINGS.get(dtype)
    if encoding is None:
        return None
    bits = encoding.bits
    for length in shape:
        bits *= length
    return bits


def _layout_faults(tensors: Iterable[Tensor], file: str, data_begin: int, size: int) -> Iterable[Fault]:
    expected = data_begin
    for tensor in tensors:
        label = shown(tensor.name)
        if tensor.end > size:
            yield Fault(
                "truncated",
                f"{file} ends at byte {size}, {label} goes to byte {tensor.end}: the file is truncated",
                file,
                label,
                size,
            )
            return
        if tensor.begin != expected:
            what = "overlaps the tensor before it" if tensor.begin < expected else "leaves a hole before it"
            yield Fault("bad_offsets", f"{label} in {file} {what}", file, label, tensor.begin)
            return
        expected = tensor.end
    if expected != size:
        yield Fault(
            "trailing_bytes",
            f"{file} has {size - expected} bytes behind its last tensor",
            file,
            None,
            expected,
        )
