"""Sleep on a real vLLM server: memory goes down, and a wrong wake shows."""

import re
from typing import Any

import httpx
import pytest

from .conftest import Engine, docker

pytestmark = pytest.mark.docker

MEBIBYTE = 2**20
TEXT_WEIGHTS = 257 * MEBIBYTE
"""SmolLM2-135M in bfloat16."""
EMBED_WEIGHTS = 43 * MEBIBYTE
"""all-MiniLM-L6-v2, loaded in half precision."""
KV_CACHE = 1024 * MEBIBYTE
"""As asked for with VLLM_CPU_KVCACHE_SPACE; the pooling model has none."""
CAPITAL = "The capital of France is Paris."


def ask(engine: Engine, question: str = "What is the capital of France?") -> str:
    answer = engine.post(
        "/v1/chat/completions",
        {
            "model": engine.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 20,
        },
    )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def request_embedding(engine: Engine) -> httpx.Response:
    return engine.post("/v1/embeddings", {"model": engine.model, "input": "The cat sits on the mat."})


def embed(engine: Engine) -> list[float]:
    answer = request_embedding(engine)
    answer.raise_for_status()
    return [float(number) for number in answer.json()["data"][0]["embedding"]]


@pytest.fixture(scope="session")
def text(engines: dict[str, Engine]) -> Engine:
    engine = engines["text"]
    assert ask(engine) == CAPITAL
    engine.warm_memory = engine.memory()
    return engine


@pytest.fixture(scope="session")
def embedder(engines: dict[str, Engine]) -> Engine:
    engine = engines["embed"]
    assert len(embed(engine)) == 384
    engine.warm_memory = engine.memory()
    return engine


def assert_sleep_saves(engine: Engine, level: int, weights: int, kv_cache: int) -> None:
    engine.sleep(level)
    asleep = engine.memory()
    if level == 1:
        engine.wake()
    else:
        engine.wake_from_level_2()
    awake = engine.memory()
    assert engine.warm_memory - asleep > 0.95 * (weights + kv_cache)
    assert awake - asleep > 0.95 * weights


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_text_model_frees_weights_and_kv_cache(text: Engine, level: int) -> None:
    assert_sleep_saves(text, level, TEXT_WEIGHTS, KV_CACHE)
    assert ask(text) == CAPITAL


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_pooling_model_frees_its_weights(embedder: Engine, level: int) -> None:
    before = embed(embedder)
    assert_sleep_saves(embedder, level, EMBED_WEIGHTS, kv_cache=0)
    assert embed(embedder) == before


@pytest.mark.parametrize(
    "steps", [[()], [("weights",), ("kv_cache",)], [("weights", "kv_cache")], [("weights",), ()]]
)
def test_level_1_comes_back_whole_with_and_without_tags(text: Engine, steps: list[tuple[str, ...]]) -> None:
    colours = ask(text, "Name three colours.")
    text.sleep(1)
    for tags in steps:
        assert text.is_sleeping()
        text.wake(*tags)
    assert not text.is_sleeping()
    assert ask(text) == CAPITAL
    assert ask(text, "Name three colours.") == colours


def test_level_2_in_the_right_order_comes_back_whole(text: Engine) -> None:
    colours = ask(text, "Name three colours.")
    text.sleep(2)
    text.wake_from_level_2()
    assert ask(text) == CAPITAL
    assert ask(text, "Name three colours.") == colours


def test_level_2_without_reload_is_garbage_even_after_a_late_reload(text: Engine) -> None:
    text.sleep(2)
    text.wake()
    assert "Paris" not in ask(text)
    # The garbage served in between has left NaN in the KV cache.
    text.call_worker("reload_weights").raise_for_status()
    assert "Paris" not in ask(text)

    text.sleep(2)
    text.wake_from_level_2()
    assert ask(text) == CAPITAL


def test_a_pooling_model_without_reload_computes_no_numbers(embedder: Engine) -> None:
    before = embed(embedder)
    embedder.sleep(2)
    embedder.wake()
    refusal = request_embedding(embedder)
    assert not refusal.is_success
    assert "Out of range float values" in refusal.text

    embedder.sleep(2)
    embedder.wake_from_level_2()
    assert embed(embedder) == before


def test_repeated_calls_do_no_harm(text: Engine) -> None:
    text.wake()
    text.sleep(1)
    text.sleep(1)
    text.call_worker("sleep", level=2).raise_for_status()
    text.wake()
    text.wake()
    text.call_worker("wake_up").raise_for_status()
    assert ask(text) == CAPITAL


@pytest.mark.parametrize(
    ("method", "arguments"), [("sleep", {"level": 3}), ("wake_up", {"tags": ["everything"]})]
)
def test_what_cannot_be_done_is_an_error_and_does_no_harm(
    text: Engine, method: str, arguments: dict[str, Any]
) -> None:
    assert text.call_worker(method, **arguments).status_code == 500
    assert ask(text) == CAPITAL


def test_no_file_is_left_where_weights_are_saved(text: Engine) -> None:
    text.sleep(1)
    named = docker("exec", text.container, "find", "/tmp", "/dev/shm", "-name", "frontdoor-cpu-sleep*")
    text.wake()
    assert named == ""


def test_each_step_is_logged_with_its_figures(text: Engine) -> None:
    text.sleep(1)
    text.wake()
    figures = r"\d+ MiB {}, \d+ MiB {}, \d+ MiB resident, took \d+\.\d\d s"
    log = text.log()
    assert re.search(r"Asleep at level 1: weights and kv_cache, " + figures.format("freed", "saved"), log)
    assert re.search(r"Woken: weights and kv_cache, " + figures.format("taken", "restored"), log)
