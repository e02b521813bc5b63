"""What the tests ask, in words whose right answers are known."""

from __future__ import annotations

import httpx

from tests.standin.processes import HTTP, Router

CAPITAL = "The capital of France is Paris."
QUESTION = "What is the capital of France?"
SECONDS = 300
"""For one answer, a wake on a busy machine included."""


def request_to(router: Router, service: str) -> httpx.Response:
    """Ask a service by its key, as its task wants to be asked."""
    if service == "text":
        messages = [{"role": "user", "content": QUESTION}]
        body = {"model": "text", "messages": messages, "temperature": 0, "max_tokens": 32}
        return HTTP.post(f"{router.url}/v1/chat/completions", json=body, timeout=SECONDS)
    body = {"model": service, "input": "The cat sits on the mat.", "encoding_format": "float"}
    return HTTP.post(f"{router.url}/v1/embeddings", json=body, timeout=SECONDS)


def ask(router: Router, service: str = "text") -> str:
    """What it answers: a text, or a vector's numbers to three digits."""
    answer = request_to(router, service)
    assert answer.status_code == 200, answer.text
    if service == "text":
        return str(answer.json()["choices"][0]["message"]["content"])
    return " ".join(f"{number:.3f}" for number in answer.json()["data"][0]["embedding"])


def bring(router: Router, service: str, order: str) -> None:
    """Bring a service to a depth from awake, in whatever depth an earlier test has left it."""
    for each in ("wake", order):
        answer = router.order(f"services/{service}/{each}", SECONDS)
        assert answer.status_code == 200, answer.text
