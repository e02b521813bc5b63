"""SIGKILL of the router at every step of a wake from level 2: afterwards nothing is served before the weights
are loaded again and the recorded canary has matched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import httpx
import pytest
from wake_router.lifecycle import Depth, Step, Transition, steps_of

from tests.contract.test_router import CALLS
from tests.real.asking import ask
from tests.real.fleet import RealEngine, memory_of
from tests.standin.processes import Router
from tests.standin.stalling import StallingProxy

WAKE = steps_of(Transition.WAKE, Depth.OFFLOADED)


def wake_until_killed(router: Router) -> None:
    """Order a wake; the router dies in it."""
    with pytest.raises(httpx.TransportError):
        router.order("services/text/wake", 300)


@pytest.mark.parametrize("step", WAKE)
def test_nothing_unproven_is_served_after_a_kill(
    text: RealEngine, proven: Callable[..., Router], step: Step
) -> None:
    proxy = StallingProxy(text.port).start()
    router = proven(text.registry_entry(base_url=f"http://127.0.0.1:{proxy.port}"))
    router.start()
    assert memory_of(router, "text")["canary"]["kind"] == "generate"
    before = ask(router)
    assert router.order("services/text/offload", 300).status_code == 200
    proxy.stall(CALLS[step], engine_gets_it=False)
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(wake_until_killed, router)
        assert proxy.reached.wait(300), f"{step} was not reached"
        router.kill()
        ordered.result()
    intent = json.loads((router.folder / "state/intents/text.json").read_text())
    assert intent["open_step"] == step.value

    proxy.stalled = b""
    proxy.passed.clear()
    router.start()
    assert ask(router) == before
    calls = [line for line, _ in groupby(proxy.passed)]
    assert calls == [CALLS[each].decode().removesuffix(" HTTP") for each in WAKE] + [
        "POST /v1/chat/completions"
    ]
    proxy.stop()
