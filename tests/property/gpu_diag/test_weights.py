"""The weights probe: what the library writes passes, and damage makes a verdict, never a traceback."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
from gpu_diag.weights.check import Options, Outcome, Progress, check_folder
from gpu_diag.weights.gguf import check_gguf
from gpu_diag.weights.index import parse_index
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

DTYPES = [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_]
FLOATS = [np.float16, np.float32, np.float64]


def check_bytes(content: bytes) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(content)
        return check_folder(folder, Options(jobs=1), Progress())


shapes = st.lists(st.integers(0, 7), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    names = draw(st.lists(st.text(min_size=1, max_size=4), max_size=3, unique=True))
    return {
        name: np.zeros(draw(shapes), draw(st.sampled_from(DTYPES)))
        for name in names
        if name != "__metadata__"
    }


@given(tensors())
@settings(max_examples=25, deadline=None)
def test_what_the_library_writes_passes(
    content: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
) -> None:
    outcome = check_bytes(save(content))
    assert (outcome.verdict, outcome.faults) == ("values_only", ())
    assert outcome.details["tensors"] == len(content)


@given(
    dtype=st.sampled_from(FLOATS),
    length=st.integers(1, 200),
    data=st.data(),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
)
@settings(max_examples=25, deadline=None)
def test_one_bad_value_anywhere_is_found_at_its_place(
    dtype: type[np.floating[np.typing.NBitBase]], length: int, data: st.DataObject, value: float
) -> None:
    values = np.ones(length, dtype)
    index = data.draw(st.integers(0, length - 1))
    values[index] = value
    content = save({"before": np.ones(3, np.uint8), "values": values})
    outcome = check_bytes(content)
    (fault,) = outcome.faults
    assert (outcome.class_, fault.tensor) == ("not_finite", "values")
    assert f"element {index} " in fault.sentence
    assert fault.offset is not None
    assert content[fault.offset :][: values.itemsize] == values[index].tobytes()


SAVED = save({"a": np.ones((4, 4), np.float32), "b": np.ones(5, np.float16)})


@given(st.integers(0, len(SAVED) - 1))
@settings(max_examples=60, deadline=None)
def test_every_truncation_fails(length: int) -> None:
    outcome = check_bytes(SAVED[:length])
    assert (outcome.verdict, outcome.class_) == ("failed", "truncated")


@given(st.lists(st.tuples(st.integers(0, len(SAVED) - 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_damage_anywhere_gives_a_verdict(damage: list[tuple[int, int]]) -> None:
    content = bytearray(SAVED)
    for position, value in damage:
        content[position] = value
    assert check_bytes(bytes(content)).verdict in ("values_only", "failed", "unverified")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
entries = st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), json_values)


@given(st.dictionaries(st.text(max_size=5), entries | json_values, max_size=4), st.binary(max_size=40))
@settings(max_examples=80, deadline=None)
def test_any_header_gives_a_verdict(header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    outcome = check_bytes(struct.pack("<Q", len(text)) + text + data)
    assert outcome.verdict in ("values_only", "failed", "unverified")


@given(json_values)
@settings(max_examples=60, deadline=None)
def test_any_index_gives_faults_or_a_map(value: object) -> None:
    weight_map, faults = parse_index(json.dumps({"weight_map": value}).encode(), "index")
    assert not (weight_map and faults)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_gguf_gives_faults_and_no_traceback(tail: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        content = b"GGUF" + struct.pack("<I", 3) + tail
        file.write(content)
        file.flush()
        count, faults = check_gguf(file.fileno(), "m.gguf", len(content))
    assert count == 0 or not faults or len(faults) <= count
