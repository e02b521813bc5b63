"""GGUF: the structure is checked, the values are not, and the verdict says so."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gpu_diag.weights.check import Options, Outcome, Progress, check_folder


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: list[int], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, offset)


PAIRS = [
    pair("general.name", 8, text("tiny")),
    pair("general.alignment", 4, struct.pack("<I", 64)),
    pair("tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
    pair("scores", 9, struct.pack("<IQ", 6, 3) + bytes(12)),
]


def gguf(tensors: list[bytes], data: bytes, version: int = 3, pairs: list[bytes] = PAIRS) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % 64) + data


def run(folder: Path, content: bytes) -> Outcome:
    (folder / "model.gguf").write_bytes(content)
    return check_folder(str(folder), Options(), Progress())


GOOD = [tensor("a", [32, 2], 3, 0), tensor("b", [3], 0, 64)]


def test_a_whole_file_is_structure_only(tmp_path: Path) -> None:
    outcome = run(tmp_path, gguf(GOOD, bytes(76)))
    assert (outcome.verdict, outcome.class_) == ("structure_only", None)
    assert outcome.details["tensors"] == 2


FAULTY = {
    "another magic": (b"GGML" + bytes(100), "bad_header"),
    "a version of tomorrow": (gguf(GOOD, bytes(76), version=9), "unknown_version"),
    "one byte less": (gguf(GOOD, bytes(75)), "truncated"),
    "cut in the header": (gguf(GOOD, bytes(76))[:60], "truncated"),
    "an unaligned tensor": (gguf([tensor("a", [1], 0, 8)], bytes(64)), "bad_offsets"),
    "half a block": (gguf([tensor("a", [31], 3, 0)], bytes(64)), "bad_header"),
    "a name of 10^18 bytes": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 10**18),
        "bad_header",
    ),
    "10^18 tensors": (b"GGUF" + struct.pack("<IQQ", 3, 10**18, 0), "bad_header"),
    "10^18 strings": (gguf(GOOD, b"", pairs=[pair("t", 9, struct.pack("<IQ", 8, 10**18))]), "bad_header"),
    "10^18 numbers": (gguf(GOOD, b"", pairs=[pair("t", 9, struct.pack("<IQ", 4, 10**18))]), "truncated"),
    "an entry of an unknown type": (gguf(GOOD, b"", pairs=[pair("t", 77, b"")]), "bad_header"),
    "an alignment of zero": (gguf(GOOD, b"", pairs=[pair("general.alignment", 4, bytes(4))]), "bad_header"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_told_by_its_class(tmp_path: Path, name: str) -> None:
    content, class_ = FAULTY[name]
    outcome = run(tmp_path, content)
    assert (outcome.verdict, outcome.class_) == ("failed", class_)


def test_a_type_of_tomorrow_is_unverified(tmp_path: Path) -> None:
    outcome = run(tmp_path, gguf([tensor("a", [1], 99, 0)], bytes(64)))
    assert (outcome.verdict, outcome.class_) == ("unverified", "unknown_dtype")
