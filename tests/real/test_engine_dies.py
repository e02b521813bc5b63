"""The engine's core is killed in the middle of a stream: seen by the client, and repaired by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.real.asking import QUESTION, SECONDS, ask
from tests.real.fleet import BOOT_SECONDS, RealEngine
from tests.standin.processes import HTTP, Router, wait_until


def engine_core(engine: RealEngine) -> int:
    """Process id of the engine's core, as the machine sees it."""
    (found,) = [
        pid
        for pid in engine.processes()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::EngineCore")
    ]
    return found


def test_an_engine_that_dies_in_a_stream(text: RealEngine, proven: Callable[..., Router]) -> None:
    router = proven(ROUTER_HOLD_RESTARTING=str(BOOT_SECONDS), ROUTER_HOLD_MAX=str(BOOT_SECONDS)).start()
    before, first = ask(router), text.incarnation()
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": "text", "messages": messages, "max_tokens": 1800, "ignore_eos": True, "stream": True}
    url = f"{router.url}/v1/chat/completions"
    with HTTP.stream("POST", url, json=body, timeout=SECONDS) as stream:
        chunks = stream.iter_text()
        received = next(chunks)
        os.kill(engine_core(text), signal.SIGKILL)
        received += "".join(chunks)
    events = [event for event in received.split("\n\n") if event.strip()]
    assert any('"error"' in event for event in events[-2:]), events[-2:]
    assert '"finish_reason":"length"' not in received

    wait_until(lambda: router.status("text")["depth"] in ("restarting", "stopped"), 120, "its death is seen")
    answer = HTTP.post(url, json={**body, "stream": False, "max_tokens": 4}, timeout=BOOT_SECONDS)
    assert answer.status_code == 200, answer.text
    assert ask(router) == before
    assert text.incarnation() != first
