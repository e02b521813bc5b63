"""Two engines that don't fit on their device together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.standin.processes import Engine, Router, wait_until

Engines = Callable[..., Engine]
Routers = Callable[..., Router]


def crowded(engines: Engines, routers: Routers, order: str) -> tuple[Engine, Engine, Router]:
    """`ocr` is awake and `text` has gone down; it can't wake while `ocr` holds the memory."""
    text, ocr = engines(), engines(name="ocr", model="Other")
    router = routers()
    router.register(text.registry_entry(), ocr.registry_entry())
    router.start()
    router.order("services/text/wake")
    assert router.order(f"services/text/{order}").status_code == 200
    assert router.chat("ocr").status_code == 200
    text.fault(no_memory_while_awake=ocr.url)
    return text, ocr, router


@pytest.mark.parametrize("order", ["sleep", "offload"])
def test_an_idle_neighbour_makes_room(engines: Engines, routers: Routers, order: str) -> None:
    _text, _ocr, router = crowded(engines, routers, order)
    answer = router.chat("text")
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].endswith("Paris.")
    assert router.status("ocr")["depth"] == "sleeping"
    assert "'text' needs the memory" in next(
        each["reason"]
        for each in router.events("depth")
        if each["service"] == "ocr" and each["depth"] == "falling_asleep"
    )
    assert len(router.events("memory")) == 1
    assert router.chat("ocr").status_code == 200, "and it wakes again when it is asked"


def test_a_busy_neighbour_is_left_alone(engines: Engines, routers: Routers) -> None:
    _text, ocr, router = crowded(engines, routers, "sleep")
    ocr.fault(chunk_seconds=0.1)
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(router.chat, "ocr", stream=True, max_tokens=25)
        wait_until(lambda: ocr.state()["running"] == 1)
        waiting = pool.submit(router.chat, "text", 60)
        wait_until(lambda: router.events("memory"))
        assert stream.result().text.rstrip().endswith("[DONE]")
        assert waiting.result().status_code == 200, "it was tried again when the neighbour was idle"
    assert "quarantined" not in router.log()


def test_a_pinned_neighbour_is_left_alone_and_the_tries_are_bounded(
    engines: Engines, routers: Routers
) -> None:
    text, _ocr, router = crowded(engines, routers, "sleep")
    router.order("services/ocr/pin")
    text.fault(no_memory=1000, no_memory_while_awake=None)
    calls = len(text.calls("/wake_up"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(router.chat, "text", 200, headers={"Prefer": "wait=2"})
        assert waiting.result().status_code == 503
    assert router.status("ocr")["depth"] == "awake"
    # After 5 s, after 20 s more and so on; never again and again at once.
    assert len(text.calls("/wake_up")) - calls == 1
    assert router.status("text")["retry_in_seconds"] > 0
    why = router.order("services/text/wake?timeout=5")
    assert why.status_code in (502, 504)


def test_a_wake_that_left_garbage_behind_is_never_served(engines: Engines, routers: Routers) -> None:
    text, _ocr, router = crowded(engines, routers, "sleep")
    text.fault(half_woken_is_garbage=True)
    answer = router.chat("text")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_quarantined"
    assert text.served("/v1/chat") == []
