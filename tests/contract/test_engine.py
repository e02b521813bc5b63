"""What an engine does, asked directly: what the router builds on. The same on every target."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.contract.conftest import Target
from tests.standin.processes import HTTP, wait_until

CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}


@pytest.fixture(autouse=True)
def awake(target: Target) -> Iterator[None]:
    """Every test begins and ends with a sound engine."""
    yield
    target.wake_completely()


def ask(target: Target, timeout: float = 60) -> str:
    answer = HTTP.post(
        f"{target.url}/v1/chat/completions", json={"model": target.model, **CHAT}, timeout=timeout
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_version(target: Target, record_property: Callable[[str, object], None]) -> None:
    record_property("version", target.version)
    assert target.version.startswith(("0.27.", "0.32."))


def test_level_1(target: Target) -> None:
    before = ask(target)
    assert target.post("/sleep?level=1&mode=wait").status_code == 200
    assert target.asleep()
    assert target.post("/wake_up").status_code == 200
    assert not target.asleep()
    assert ask(target) == before


def test_level_2(target: Target) -> None:
    before = ask(target)
    assert target.post("/sleep?level=2&mode=wait").status_code == 200
    assert target.asleep()
    assert target.post("/wake_up?tags=weights").status_code == 200
    assert target.asleep()
    assert target.post("/collective_rpc", json={"method": "reload_weights"}).status_code == 200
    assert target.post("/wake_up?tags=kv_cache").status_code == 200
    assert target.post("/reset_prefix_cache").status_code == 200
    assert not target.asleep()
    assert ask(target) == before


def test_the_level_2_sequence_is_harmless_when_awake(target: Target) -> None:
    before = ask(target)
    target.wake_completely()
    assert ask(target) == before


def test_waking_twice_is_harmless(target: Target) -> None:
    assert target.post("/wake_up").status_code == 200
    assert target.post("/wake_up").status_code == 200
    assert not target.asleep()


def test_a_second_sleep_is_answered_with_200_and_does_nothing(target: Target) -> None:
    before = ask(target)
    target.post("/sleep?level=1&mode=wait")
    assert target.post("/sleep?level=2&mode=wait").status_code == 200
    target.post("/wake_up")
    assert ask(target) == before, "the weights were discarded after all"


def test_the_level_in_a_body_is_ignored(target: Target) -> None:
    before = ask(target)
    assert target.post("/sleep?mode=wait", json={"level": 2}).status_code == 200
    assert target.asleep()
    target.post("/wake_up")
    assert ask(target) == before


def test_a_sleeping_engine_says_that_it_is_healthy(target: Target) -> None:
    target.post("/sleep?level=1&mode=wait")
    for path in ("/health", "/v1/models", "/metrics", "/version"):
        assert HTTP.get(f"{target.url}{path}", timeout=60).status_code == 200


def test_a_request_to_a_sleeping_engine_hangs_until_the_wake(target: Target) -> None:
    target.post("/sleep?level=1&mode=wait")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(target)))
    asking.start()
    asking.join(1.0)
    assert asking.is_alive()
    target.post("/wake_up")
    asking.join(60)
    assert answers


def test_a_client_that_leaves_frees_the_engine(target: Target) -> None:
    body = {"model": target.model, **CHAT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    if not target.real:
        target.post("/standin/faults", json={"chunk_seconds": 0.02})
    with HTTP.stream("POST", f"{target.url}/v1/chat/completions", json=body, timeout=60) as answer:
        chunks = answer.iter_bytes()
        next(chunks)
        assert target.running() == 1
    wait_until(lambda: target.running() == 0, 15.0, "the engine is free, long before it would have ended")
    if not target.real:
        target.post("/standin/faults", json={"chunk_seconds": 0.001})


def test_the_start_time_is_told(target: Target) -> None:
    text = HTTP.get(f"{target.url}/metrics", timeout=60).text
    assert any(line.startswith("process_start_time_seconds ") for line in text.splitlines())


def test_unknown_model(target: Target) -> None:
    answer = target.post("/v1/chat/completions", json={**CHAT, "model": "nobody"})
    assert answer.status_code == 404
    assert "message" in answer.json()["error"]


def test_a_body_must_say_that_it_is_json(target: Target) -> None:
    content = json.dumps({"model": target.model, **CHAT}).encode()
    assert target.post("/v1/chat/completions", content=content).status_code == 400


def test_log_probabilities_for_the_canary(target: Target) -> None:
    body = {"model": target.model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = target.post("/v1/completions", json={**body, "logprobs": 1, "prompt_logprobs": 1}).json()
    choice = answer["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert all("logprob" in entry for entry in choice["prompt_logprobs"][1].values())
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"]) >= 1
