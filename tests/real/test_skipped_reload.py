"""A wake that skips the reload is caught by the canary: quarantine, and never a served answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.asking import ask, request_to
from tests.real.fleet import Fleet, memory_of
from tests.standin.processes import HTTP, Router
from tests.standin.stalling import StallingProxy

WITHOUT_RELOAD = str(Path(__file__).with_name("without_reload.py"))
CANARY_PATH = {"text": "POST /v1/completions", "embed": "POST /v1/embeddings"}


@pytest.mark.parametrize("service", ["text", "embed"])
def test_a_wake_without_reload_is_quarantined(
    fleet: Fleet, proven: Callable[..., Router], service: str
) -> None:
    engine = fleet.engines[service]
    proxy = StallingProxy(engine.port).start()
    router = proven(engine.registry_entry(base_url=f"http://127.0.0.1:{proxy.port}"))
    router.program = (WITHOUT_RELOAD,)
    router.start()
    before = ask(router, service)
    assert router.order(f"services/{service}/offload", 300).status_code == 200
    proxy.passed.clear()

    refused = request_to(router, service)
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["code"] == "model_quarantined"
    assert router.status(service)["conditions"] == ["quarantined"]
    assert memory_of(router, service)["level_2_broken"]
    # Only the canary was asked, and once more; the client's question never got there.
    asked = [line for line in proxy.passed if line.startswith("POST /v1/")]
    assert asked == [CANARY_PATH[service]] * 2
    assert "POST /collective_rpc" not in proxy.passed

    router.kill()
    router.program = Router.program
    router.start()
    assert ask(router, service) == before, "the right router repairs it"
    assert "POST /collective_rpc" in proxy.passed
    proxy.stop()


def test_the_engine_itself_would_have_answered_garbage(fleet: Fleet, proven: Callable[..., Router]) -> None:
    """So that the test above can't pass on an engine whose weights survive level 2."""
    engine = fleet.engines["text"]
    for path in ("/sleep?level=2&mode=wait", "/wake_up"):
        assert HTTP.post(f"{engine.url}{path}", timeout=300).status_code == 200
    body = {"model": engine.model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = HTTP.post(f"{engine.url}/v1/completions", json=body, timeout=300)
    assert "Paris" not in answer.text
    router = proven()
    router.start()
    assert router.order("services/text/offload", 300).status_code == 200
    assert "Paris" in ask(router)
