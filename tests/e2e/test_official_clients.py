"""The official clients against the rehearsal, beyond what test_rehearsal.py asks with openai's."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
from rehearsal_box import ENDPOINT, Deployed, admin, service_status

CAPITAL = "The capital of France is Paris."
QUESTION = "What is the capital of France?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}
"""anthropic 2.14.0 has no argument for it."""
SECONDS = 300


def test_openai_responses(deployed: Deployed) -> None:
    admin("/admin/services/text/sleep")
    client = openai.OpenAI(base_url=f"{ENDPOINT}/v1", api_key="none", max_retries=0, timeout=SECONDS)
    answer = client.responses.create(model="smol", input=QUESTION, temperature=0, max_output_tokens=32)
    assert answer.output_text == CAPITAL


def test_openais_own_retries_reach_an_answer(deployed: Deployed) -> None:
    admin("/admin/services/text/sleep")
    impatient = {"Prefer": "wait=0"}
    client = openai.OpenAI(
        base_url=f"{ENDPOINT}/v1", api_key="none", max_retries=20, timeout=SECONDS, default_headers=impatient
    )
    answer = client.chat.completions.with_raw_response.create(
        model="smol", messages=MESSAGES, temperature=0, max_tokens=32
    )
    assert answer.parse().choices[0].message.content == CAPITAL
    assert answer.retries_taken >= 1
    assert service_status("text")["depth"] == "awake"


def test_anthropic_messages(deployed: Deployed) -> None:
    client = anthropic.Anthropic(base_url=ENDPOINT, api_key="none", max_retries=0, timeout=SECONDS)
    admin("/admin/services/text/sleep")
    answer = client.messages.create(model="smol", max_tokens=32, messages=MESSAGES, extra_body=GREEDY)
    assert answer.content[0].text == CAPITAL  # type: ignore[union-attr]
    admin("/admin/services/text/sleep")
    with client.messages.stream(model="smol", max_tokens=32, messages=MESSAGES, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == CAPITAL
