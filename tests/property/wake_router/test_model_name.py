"""Exchanging the model's name touches nothing else, whatever the body looks like."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from wake_router.model_name import UnusableBodyError, find_model

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.text(min_size=1, max_size=20).filter(
    lambda name: not any("\ud800" <= each <= "\udfff" for each in name)
)


@given(
    st.dictionaries(st.text(max_size=8), values, max_size=4),
    names,
    names,
    st.booleans(),
    st.sampled_from([None, 1]),
)
@settings(max_examples=300, deadline=None)
def test_only_the_model_changes(
    rest: dict[str, Any], before: str, after: str, ascii_only: bool, indent: int | None
) -> None:
    document = {**rest, "model": before}
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        named = find_model(body)
    except UnusableBodyError:
        body.decode("utf-8", "strict") if ascii_only else None
        assert not ascii_only, "only bytes that aren't UTF-8 may be refused here"
        return
    assert named.model == before
    changed = named.with_model(after)
    assert json.loads(changed) == {**document, "model": after}
    start, end = named.spans[0]
    assert changed[:start] == body[:start]
    assert changed.endswith(body[end:])


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_name_or_a_sentence(body: bytes) -> None:
    try:
        assert find_model(body).model
    except UnusableBodyError as error:
        assert str(error).endswith(".")
