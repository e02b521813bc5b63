"""Indexes against shards."""

from __future__ import annotations

import json

import pytest
from gpu_diag.weights.index import count_faults, index_faults, parse_index, unlisted_shards

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAP = {"a": ONE, "b": ONE, "c": TWO}


def test_an_index_that_agrees() -> None:
    text = json.dumps({"metadata": {}, "weight_map": MAP}).encode()
    assert parse_index(text, "i") == (MAP, [])
    tensors: dict[str, set[str]] = {ONE: {"a", "b"}, TWO: {"c"}}
    assert list(index_faults("i", MAP, {ONE, TWO}, tensors)) == []
    assert list(count_faults([ONE, TWO])) == []
    assert list(unlisted_shards("i", MAP, [ONE, TWO, "other.safetensors"])) == []


@pytest.mark.parametrize(
    ("text", "class_"),
    [
        (b"", "bad_index"),
        (b"[]", "bad_index"),
        (b'{"weight_map": {"a": 1}}', "bad_index"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "duplicate_key"),
        (b'{"weight_map": {"a": "../other/x.safetensors"}}', "bad_index"),
        (b'{"weight_map": {"a": "/etc/passwd"}}', "bad_index"),
        (b'{"weight_map": {"a": "x\\u0000"}}', "bad_index"),
        (b'{"weight_map": {"a": ""}}', "bad_index"),
        (b'{"weight_map": ' + b"[" * 100_000, "bad_index"),
    ],
)
def test_an_index_that_is_none_or_leads_outside(text: bytes, class_: str) -> None:
    weight_map, faults = parse_index(text, "i")
    assert weight_map == {}
    assert [fault.class_ for fault in faults] == [class_]


def test_a_missing_shard() -> None:
    (fault,) = index_faults("i", MAP, {ONE}, {ONE: {"a", "b"}})
    assert (fault.class_, fault.file) == ("missing_shard", TWO)


def test_a_tensor_that_is_not_where_the_index_says() -> None:
    (fault,) = index_faults("i", MAP, {ONE, TWO}, {ONE: {"a"}, TWO: {"c"}})
    assert (fault.class_, fault.tensor, fault.file) == ("missing_tensor", "b", ONE)


def test_a_tensor_that_the_index_does_not_list() -> None:
    (fault,) = index_faults("i", MAP, {ONE, TWO}, {ONE: {"a", "b"}, TWO: {"c", "d"}})
    assert (fault.class_, fault.tensor) == ("not_in_index", "d")


def test_a_shard_that_the_index_does_not_list() -> None:
    (fault,) = unlisted_shards("i", {"a": ONE}, [ONE, TWO])
    assert (fault.class_, fault.file) == ("shard_not_listed", TWO)


def test_incomplete_sets_of_shards() -> None:
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 3)]
    (fault,) = count_faults(names)
    assert (fault.class_, fault.file) == ("missing_shard", "model-00002-of-00003.safetensors")


def test_shards_counted_from_zero_are_complete() -> None:
    assert list(count_faults(f"model-{number:05d}-of-00003.safetensors" for number in range(3))) == []


def test_a_promise_of_many_shards_costs_nothing() -> None:
    assert len(list(count_faults(["model-00001-of-99999.safetensors"]))) == 1
