"""Usage is found where engines report it, and nowhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wake_router.tokens import BYTES_KEPT, Tokens, reported_tokens

USAGE = {"prompt_tokens": 12, "total_tokens": 15, "completion_tokens": 3, "prompt_tokens_details": None}


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        ([json.dumps({"choices": [], "usage": USAGE, "kv_transfer_params": None})], Tokens(12, 3)),
        ([json.dumps({"data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}})], Tokens(7, 0)),
        ([f"data: {json.dumps({'usage': USAGE})}\n\n", "data: [DONE]\n\n", ""], Tokens(12, 3)),
        (['data: {"usage":{"prompt_to', 'kens":1,"completion_tokens":2}}', "\n\n"], Tokens(1, 2)),
        (
            [
                'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}\n\n',
                'data: {"type":"message_delta","usage":{"input_tokens":9,"output_tokens":4}}\n\n',
            ],
            Tokens(9, 4),
        ),
        (
            ['{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":1},"output_tokens":6}}'],
            Tokens(5, 6),
        ),
        (['{"usage": null}'], None),
        (["data: [DONE]\n\n"], None),
        ([], None),
        (['{"usage": {"prompt_tokens": "many"}}'], None),
    ],
)
def test_what_engines_answer(chunks: list[str], tokens: Tokens | None) -> None:
    assert reported_tokens(chunk.encode() for chunk in chunks) == tokens


@given(st.text())
def test_a_models_own_words_are_not_taken_for_usage(text: str) -> None:
    answer = json.dumps({"choices": [{"text": '{"usage": {"prompt_tokens": 99}}' + text}], "usage": USAGE})
    assert reported_tokens([answer.encode()[-BYTES_KEPT:]]) == Tokens(12, 3)
    without = json.dumps({"choices": [{"text": '"usage": {"prompt_tokens": 99}' + text}]})
    assert reported_tokens([without.encode()[-BYTES_KEPT:]]) is None


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_survived(chunks: list[bytes]) -> None:
    reported_tokens(chunks)
