"""The official clients against real engines, asleep or not."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.real.asking import CAPITAL, QUESTION, SECONDS, bring
from tests.standin.processes import Router

DEPTH_ORDERS = ["wake", "sleep", "offload"]
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}
"""anthropic 2.14.0 has no argument for it."""


@pytest.fixture
def router(proven: Callable[..., Router]) -> Router:
    """In front of both engines."""
    return proven().start()


@pytest.fixture
def client(router: Router) -> Iterator[openai.OpenAI]:
    """Without retries: an answer counts only if it is the first."""
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def claude(router: Router) -> Iterator[anthropic.Anthropic]:
    """The client of the Messages API."""
    with anthropic.Anthropic(base_url=router.url, api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


@pytest.mark.parametrize("order", DEPTH_ORDERS)
def test_openai_chat(router: Router, client: openai.OpenAI, order: str) -> None:
    bring(router, "text", order)
    answer = client.chat.completions.create(model="text", messages=MESSAGES, temperature=0, max_tokens=32)
    assert answer.choices[0].message.content == CAPITAL


@pytest.mark.parametrize("order", DEPTH_ORDERS)
def test_openai_stream(router: Router, client: openai.OpenAI, order: str) -> None:
    bring(router, "text", order)
    stream = client.chat.completions.create(
        model="text", messages=MESSAGES, temperature=0, max_tokens=32, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == CAPITAL
    assert len([piece for piece in pieces if piece]) > 3, "the answer came in one piece"


def test_openai_responses(client: openai.OpenAI) -> None:
    made = client.responses.create(model="text", input=QUESTION, temperature=0, max_output_tokens=32)
    assert made.output_text == CAPITAL
    assert client.responses.retrieve(made.id).output_text == CAPITAL
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")
    events = client.responses.create(
        model="text", input=QUESTION, temperature=0, max_output_tokens=32, stream=True
    )
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == CAPITAL


@pytest.mark.parametrize("order", DEPTH_ORDERS)
def test_openai_embeddings(router: Router, client: openai.OpenAI, order: str) -> None:
    bring(router, "embed", order)
    sentences = ["A cat sits on the mat.", "A kitten rests on the rug.", "Quarterly revenue grew."]
    cat, kitten, revenue = (
        item.embedding for item in client.embeddings.create(model="embed", input=sentences).data
    )
    assert _cosine(cat, kitten) > 0.5
    assert abs(_cosine(cat, revenue)) < 0.2


def _cosine(left: list[float], right: list[float]) -> float:
    return float(sum(map(operator.mul, left, right)) / math.hypot(*left) / math.hypot(*right))


def test_openai_models_wake_nothing(router: Router, client: openai.OpenAI) -> None:
    bring(router, "text", "sleep")
    depths = {model.id: model.model_dump()["depth"] for model in client.models.list()}
    assert depths["SmolLM2-135M-Instruct"] == "sleeping"
    assert client.models.retrieve("all-MiniLM-L6-v2").id == "all-MiniLM-L6-v2"
    assert router.status("text")["depth"] == "sleeping"


def test_openais_own_retries_reach_an_answer(proven: Callable[..., Router]) -> None:
    router = proven(ROUTER_HOLD_OFFLOADED="0", ROUTER_RETRY_AFTER_MAX="1").start()
    bring(router, "text", "offload")
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=100, timeout=SECONDS)
    answer = client.chat.completions.create(model="text", messages=MESSAGES, temperature=0, max_tokens=32)
    assert answer.choices[0].message.content == CAPITAL
    *refused, answered = [each["status"] for each in router.events("request")]
    assert (set(refused), answered) == ({503}, 200)
    wakes = [each for each in router.events("transition") if each["transition"] == "wake"]
    assert wakes[-1]["from_depth"] == "offloaded"


@pytest.mark.parametrize("order", DEPTH_ORDERS)
def test_anthropic_messages(router: Router, claude: anthropic.Anthropic, order: str) -> None:
    bring(router, "text", order)
    answer = claude.messages.create(model="text", max_tokens=32, messages=MESSAGES, extra_body=GREEDY)
    assert answer.content[0].text == CAPITAL  # type: ignore[union-attr]


def test_anthropic_stream(router: Router, claude: anthropic.Anthropic) -> None:
    bring(router, "text", "sleep")
    with claude.messages.stream(model="text", max_tokens=32, messages=MESSAGES, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
    assert "".join(pieces) == CAPITAL
    assert len(pieces) > 3, "the answer came in one piece"


def test_anthropic_count_tokens(claude: anthropic.Anthropic) -> None:
    assert claude.messages.count_tokens(model="text", messages=MESSAGES).input_tokens > 5
