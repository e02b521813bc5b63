"""Every route of the public surface that a real engine of the rehearsal has, asleep at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wake_router.surface import JSON_PATHS

from tests.real.asking import QUESTION, SECONDS, bring
from tests.real.page import NOT_ON_THESE_MODELS
from tests.standin.processes import HTTP, Router

MESSAGES = [{"role": "user", "content": QUESTION}]
PAIR = {"text_1": "A cat sits on the mat.", "text_2": ["A kitten rests on the rug.", "Revenue grew."]}
RANKING = {"query": "A cat sits on the mat.", "documents": ["Revenue grew.", "A kitten rests on the rug."]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions": ("text", {"messages": MESSAGES, "max_tokens": 4}),
    "/v1/completions": ("text", {"prompt": "One, two,", "max_tokens": 4}),
    "/v1/responses": ("text", {"input": QUESTION, "max_output_tokens": 4}),
    "/v1/messages": ("text", {"messages": MESSAGES, "max_tokens": 4}),
    "/v1/messages/count_tokens": ("text", {"messages": MESSAGES}),
    "/v1/embeddings": ("embed", {"input": "A cat."}),
    "/v1/score": ("embed", PAIR),
    "/score": ("embed", PAIR),
    "/v1/rerank": ("embed", RANKING),
    "/v2/rerank": ("embed", RANKING),
    "/rerank": ("embed", RANKING),
    "/pooling": ("embed", {"input": "A cat."}),
    "/tokenize": ("text", {"prompt": "A cat."}),
    "/detokenize": ("text", {"tokens": [1, 2, 3]}),
}


def test_no_route_is_forgotten() -> None:
    assert set(BODIES) | set(NOT_ON_THESE_MODELS) == set(JSON_PATHS)
    assert not set(BODIES) & set(NOT_ON_THESE_MODELS)


def test_every_route_is_answered(proven: Callable[..., Router]) -> None:
    router = proven().start()
    for service in ("text", "embed"):
        bring(router, service, "sleep")
    for path, (service, body) in BODIES.items():
        answer = HTTP.post(f"{router.url}{path}", json={"model": service, **body}, timeout=SECONDS)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        assert answer.json(), path


def test_reranking_ranks(proven: Callable[..., Router]) -> None:
    router = proven().start()
    answer = HTTP.post(f"{router.url}/v1/rerank", json={"model": "embed", **RANKING}, timeout=SECONDS)
    assert answer.json()["results"][0]["index"] == 1


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score"])
def test_what_its_engine_cannot_do_is_refused(proven: Callable[..., Router], path: str) -> None:
    router = proven().start()
    bring(router, "text", "sleep")
    answer = HTTP.post(f"{router.url}{path}", json={"model": "text", "input": "A cat.", **PAIR}, timeout=30)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]
    assert router.status("text")["depth"] == "sleeping"
