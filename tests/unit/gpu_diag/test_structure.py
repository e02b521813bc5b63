"""Headers of safetensors files: each thing that can be wrong, and the legal oddities."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from gpu_diag.weights.structure import Structure, read_structure


def structure_of(path: Path, content: bytes) -> Structure:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_structure(descriptor, "model.safetensors", len(content))
    finally:
        os.close(descriptor)


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_in_the_order_of_their_place(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("F32", [2], 4, 12),
        "a": entry("F32", [], 0, 4),
        "empty": entry("BF16", [0, 3], 12, 12),
        "packed": entry("F4", [4], 12, 14),
    }
    found = structure_of(tmp_path / "m", file_of(header, bytes(14)))
    assert found.faults == ()
    assert [(tensor.name, tensor.end - tensor.begin) for tensor in found.tensors] == [
        ("a", 4),
        ("b", 8),
        ("empty", 0),
        ("packed", 2),
    ]
    assert found.tensors[0].begin == found.data_begin


def test_a_file_without_tensors_is_whole(tmp_path: Path) -> None:
    assert structure_of(tmp_path / "m", file_of({})).faults == ()


def test_what_the_library_writes_is_whole(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save

    content = save({"a": np.ones((3, 5), np.float16), "b": np.zeros(7, np.int64)}, {"by": "test"})
    found = structure_of(tmp_path / "m", content)
    assert found.faults == ()
    assert {tensor.name for tensor in found.tensors} == {"a", "b"}


GOOD = {"a": entry("F32", [2], 0, 8)}

FAULTY = {
    "no bytes": (b"", "truncated"),
    "half a length": (b"\1\2\3", "truncated"),
    "a header of 10^18 bytes": (struct.pack("<Q", 10**18) + b"{}", "truncated"),
    "a header behind the end": (file_of(GOOD, length=10_000), "truncated"),
    "not JSON": (file_of(b"{nothing"), "bad_header"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "bad_header"),
    "not an object": (file_of(b"[1, 2, 3, 4, 5, 6, 7, 8, 9]"), "bad_header"),
    "a deep nest": (file_of(b'{"a":' + b"[" * 100_000), "bad_header"),
    "a nest of numbers and braces": (file_of(b'{"a":' + b"[1,2,3,4,5,6," * 50_000), "bad_header"),
    "a key twice": (
        file_of(b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "a": 1}'),
        "duplicate_key",
    ),
    "an entry that is none": (file_of({"a": 1}), "bad_header"),
    "no dtype": (file_of({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "bad_header"),
    "a negative dimension": (file_of({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "bad_header"),
    "a dimension that is true": (file_of({"a": entry("U8", [True], 0, 1)}, bytes(1)), "bad_header"),
    "a float dimension": (file_of({"a": entry("U8", [1.0], 0, 1)}, bytes(1)), "bad_header"),
    "a dimension beyond 64 bits": (file_of({"a": entry("U8", [2**64], 0, 1)}, bytes(1)), "bad_header"),
    "dimensions whose product overflows": (
        file_of({"a": entry("U8", [2**62, 2**62, 4], 0, 0)}),
        "wrong_size",
    ),
    "too many dimensions": (file_of({"a": entry("U8", [1] * 100, 0, 1)}, bytes(1)), "bad_header"),
    "the end before the begin": (file_of({"a": entry("U8", [1], 4, 0)}, bytes(4)), "bad_offsets"),
    "three offsets": (
        file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, bytes(2)),
        "bad_header",
    ),
    "fewer bytes than the shape": (file_of({"a": entry("F32", [2], 0, 4)}, bytes(4)), "wrong_size"),
    "half a byte": (file_of({"a": entry("F4", [3], 0, 2)}, bytes(2)), "wrong_size"),
    "overlapping": (
        file_of({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
        "bad_offsets",
    ),
    "a hole": (file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)}, bytes(5)), "bad_offsets"),
    "truncated data": (file_of(GOOD, bytes(7)), "truncated"),
    "offsets far outside": (file_of({"a": entry("U8", [2**40], 0, 2**40)}, bytes(4)), "truncated"),
    "bytes behind the last tensor": (file_of(GOOD, bytes(9)), "trailing_bytes"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_told_by_its_class(tmp_path: Path, name: str) -> None:
    content, class_ = FAULTY[name]
    found = structure_of(tmp_path / "m", content)
    assert [fault.class_ for fault in found.faults] == [class_]
    assert "model.safetensors" in found.faults[0].sentence


def test_the_truncated_tensor_and_the_offset_are_named(tmp_path: Path) -> None:
    header = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
    content = file_of(header, bytes(13))
    (fault,) = structure_of(tmp_path / "m", content).faults
    assert (fault.tensor, fault.offset) == ("b", len(content))


def test_a_dtype_of_tomorrow_is_no_fault_of_the_structure(tmp_path: Path) -> None:
    found = structure_of(tmp_path / "m", file_of({"a": entry("F3", [8], 0, 3)}, bytes(3)))
    assert found.faults == ()


def test_a_lying_length_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**34))
        file.truncate(2**35)  # sparse: the promised header is really there
    descriptor = os.open(path, os.O_RDONLY)
    tracemalloc.start()
    try:
        (fault,) = read_structure(descriptor, "m", 2**35).faults
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
        os.close(descriptor)
    assert fault.class_ == "header_too_large"


def test_control_characters_of_a_name_are_not_printed(tmp_path: Path) -> None:
    (fault,) = structure_of(tmp_path / "m", file_of({"a\x1b[31m\n": 1})).faults
    assert "\x1b" not in fault.sentence and "\n" not in fault.sentence
