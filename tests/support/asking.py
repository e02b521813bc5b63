"""Clients that keep asking while the box is being changed, and what is known of the services meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import yaml
from openai.types.chat import ChatCompletionMessageParam
from rehearsal_box import ENDPOINT, REPOSITORY, ROOT, container_ids, docker

PATIENCE_SECONDS = 600
CAPITAL = "The capital of France is Paris."
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def declared() -> dict[str, Any]:
    """The rehearsal's services, as group_vars declare them."""
    path = REPOSITORY / "group_vars" / "rehearsal" / "services.yml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())["vllm_service_services"]
    return found


def services(name: str, **changes: object) -> str:
    """Extra variables: the rehearsal's services, one of them changed."""
    return json.dumps({"vllm_service_services": declared() | {name: declared()[name] | changes}})


def official_client() -> openai.OpenAI:
    """The official client without its retries: whatever it meets is seen."""
    return openai.OpenAI(base_url=f"{ENDPOINT}/v1", api_key="unused", max_retries=0, timeout=PATIENCE_SECONDS)


class Asker:
    """A client that asks again and again until it is told to stop; what went wrong, it remembers."""

    def __init__(self, ask: Callable[[openai.OpenAI], None], pause_seconds: float = 0.05) -> None:
        self._ask = ask
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        self.told_to_come_back = 0
        self.failures: list[str] = []

    def _run(self) -> None:
        client = official_client()
        while not self._stop.is_set():
            try:
                self._ask(client)
                self.answered += 1
                time.sleep(self._pause_seconds)
            except openai.InternalServerError as error:
                if error.status_code == 503 and error.response.headers.get("retry-after"):
                    self.told_to_come_back += 1
                    time.sleep(1)
                else:
                    self.failures.append(repr(error))
            except Exception as error:  # noqa: BLE001 - whatever a client would see
                self.failures.append(repr(error))
                time.sleep(0.5)

    def wait_for_another(self) -> None:
        """Wait until one more question was answered, or failed."""
        answered = self.answered
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.answered == answered and not self.failures:
            assert time.monotonic() < deadline, "the next question was never answered"
            time.sleep(0.1)

    def __enter__(self) -> Asker:
        self._thread.start()
        self.wait_for_another()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "a question was never answered"


def embed(client: openai.OpenAI) -> None:
    """One embedding."""
    assert len(client.embeddings.create(model="minilm", input="cat").data[0].embedding) == 384


def stream_text(client: openai.OpenAI) -> None:
    """A stream of 200 tokens; it counts only when it comes to its proper end."""
    stream = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Count."}],
        max_tokens=200,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    reasons = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
    assert reasons[-1] == "length", f"the stream ended after {len(reasons)} pieces"


def name_capital(client: openai.OpenAI) -> None:
    """A question whose answer is known: it counts only when it is right."""
    answer = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=32)
    assert answer.choices[0].message.content == CAPITAL


def renewed(before: dict[str, str]) -> set[str]:
    """Names of the containers that are others than before; none is gone, none has come."""
    after = container_ids()
    assert set(after) == set(before)
    return {name for name in after if before[name] != after[name]}


def releases() -> list[int]:
    """The numbers of the releases that are kept."""
    return sorted(int(path.name) for path in (ROOT / "releases").iterdir())


def arguments(container: str) -> list[str]:
    """The arguments that a container was started with."""
    found: list[str] = json.loads(docker("inspect", "--format", "{{json .Args}}", container))
    return found
