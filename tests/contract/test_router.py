"""The router in front of an engine. The same on every target."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from urllib.parse import urlsplit

import httpx
import pytest
from wake_router.lifecycle import Depth, Step, Transition, steps_of

from tests.contract.conftest import Target
from tests.standin.processes import Router, until, wait_until
from tests.standin.stalling import StallingProxy

Routers = Callable[..., Router]

CALLS = {
    Step.SLEEP_LEVEL_1: b"POST /sleep?level=1",
    Step.SLEEP_LEVEL_2: b"POST /sleep?level=2",
    Step.WAKE_ALL: b"POST /wake_up HTTP",
    Step.WAKE_WEIGHTS: b"POST /wake_up?tags=weights",
    Step.RELOAD_WEIGHTS: b"POST /collective_rpc",
    Step.WAKE_KV_CACHE: b"POST /wake_up?tags=kv_cache",
    Step.RESET_PREFIX_CACHE: b"POST /reset_prefix_cache",
    Step.CANARY: b"POST /v1/completions",
}
ROUND_TRIP = (
    *steps_of(Transition.OFFLOAD, Depth.AWAKE),
    *steps_of(Transition.WAKE, Depth.OFFLOADED),
)
DESTRUCTIVE = [step for step in ROUND_TRIP if step is not Step.RECORD_CANARY]
WAKE = [CALLS[step].removesuffix(b" HTTP") for step in steps_of(Transition.WAKE, Depth.OFFLOADED)]
KILLS_ON_THE_STAND_IN = 3
"""For every step, dialect and whether the engine gets the call; twice as many at any moment."""


@pytest.fixture(autouse=True)
def sound(target: Target) -> Iterator[None]:
    """Every test ends with a sound engine."""
    yield
    target.wake_completely()


@pytest.fixture
def router(target: Target, routers: Routers) -> Router:
    router = routers()
    router.register(target.registry_entry())
    router.start()
    assert router.order("services/text/wake", 120).status_code == 200
    return router


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def ask(router: Router) -> str:
    return text_of(router.chat("TEXT", 120, temperature=0, max_tokens=12))


@pytest.mark.parametrize("depth", ["sleep", "offload"])
def test_a_sleeping_model_answers_as_before(router: Router, depth: str) -> None:
    before = ask(router)
    assert router.order(f"services/text/{depth}", 120).status_code == 200
    assert ask(router) == before
    assert len([each for each in router.events("transition") if each["transition"] == "wake"]) >= 1


def test_ten_at_once_are_one_wake(router: Router) -> None:
    router.order("services/text/sleep", 120)
    before = len(router.events("transition"))
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: router.chat("text", 120, max_tokens=4).status_code, range(10)))
    assert answers == [200] * 10
    assert [each["transition"] for each in router.events("transition")[before:]] == ["wake"]


def test_streams(router: Router) -> None:
    plain = ask(router)
    answer = router.chat("text", 120, temperature=0, max_tokens=12, stream=True)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"] for event in events[:-1]]
    assert "".join(each[0]["delta"].get("content") or "" for each in choices if each) == plain


def test_a_client_that_leaves_frees_the_engine(router: Router, target: Target) -> None:
    async def ask_and_leave() -> None:
        messages = [{"role": "user", "content": "Count."}]
        body = {"model": "text", "messages": messages, "max_tokens": 1500, "ignore_eos": True}
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            asking = asyncio.create_task(
                client.post(f"{router.url}/v1/chat/completions", json=body, timeout=60)
            )
            await until(lambda: target.running() == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    if not target.real:
        target.post("/standin/faults", json={"chunk_seconds": 0.02})
    asyncio.run(ask_and_leave())
    wait_until(lambda: target.running() == 0, 15.0, "the engine is free")
    if not target.real:
        target.post("/standin/faults", json={"chunk_seconds": 0.001})


def test_the_engines_own_errors_come_through(router: Router) -> None:
    answer = router.chat("text", 60, max_tokens="many")
    assert answer.status_code == 400
    assert "message" in answer.json()["error"]


def test_requests_that_race_the_idle_timer(target: Target, routers: Routers) -> None:
    count = 50 if target.real else 1000
    router = routers()
    router.register(target.registry_entry(idle_sleep_seconds=0.001))
    router.start()
    if not target.real:
        target.post("/standin/faults", json={"sleep_seconds": 0.05, "wake_seconds": 0.01})

    def ask_at_random(number: int) -> int:
        time.sleep(random.Random(number).random() * 0.3)
        return router.chat("text", 120, max_tokens=2).status_code

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask_at_random, range(count))) == [200] * count
    if not target.real:
        target.post("/standin/faults", json={"sleep_seconds": 0.0, "wake_seconds": 0.0})
        held = [each for each in router.events("request") if each["found"] == "falling_asleep"]
        assert len(held) >= 200


def test_the_router_restarts(target: Target, router: Router) -> None:
    for depth, order in (("awake", "wake"), ("sleeping", "sleep"), ("offloaded", "offload")):
        assert router.order(f"services/text/{order}", 120).json()["depth"] == depth
        router.wait_for_record("text", depth)
        router.kill()
        router.start()
        router.wait_for("text", depth)


def test_no_step_is_left_out() -> None:
    # The one changes nothing, the other is the launcher's: after it the process is another.
    assert set(CALLS) == set(Step) - {Step.RECORD_CANARY, Step.ORDER_RESTART}


@pytest.mark.parametrize("engine_gets_it", [False, True])
@pytest.mark.parametrize("step", DESTRUCTIVE)
def test_the_router_is_killed_at_a_step(
    target: Target, routers: Routers, step: Step, engine_gets_it: bool
) -> None:
    proxy = StallingProxy(urlsplit(target.url).port or 80).start()
    router = routers(ROUTER_CONNECT_TIMEOUT="2")
    router.register(target.registry_entry(base_url=f"http://127.0.0.1:{proxy.port}"))
    router.start()
    before = ask(router)
    for _ in range(1 if target.real else KILLS_ON_THE_STAND_IN):
        if step is not Step.SLEEP_LEVEL_2:
            assert router.order("services/text/offload", 120).status_code == 200
        proxy.stall(CALLS[step], engine_gets_it)
        _order_in_background(router, "offload" if step is Step.SLEEP_LEVEL_2 else "wake")
        assert proxy.reached.wait(60), f"{step} was not reached"
        if engine_gets_it:
            time.sleep(3.0 if target.real else 0.1)
        router.kill()
        intent = json.loads((router.folder / "state/intents/text.json").read_text())
        assert intent["open_step"] == step.value
        proxy.stalled = b""
        proxy.passed.clear()
        router.start()
        assert ask(router) == before
        assert _calls_before_the_first_answer(proxy)[-len(WAKE) :] == WAKE
    proxy.stop()


@pytest.mark.parametrize("engine_gets_it", [False, True])
def test_the_router_is_killed_in_a_wake_from_level_1(
    target: Target, routers: Routers, engine_gets_it: bool
) -> None:
    """Which doesn't wait for the disk: whatever lies there then is right."""
    proxy = StallingProxy(urlsplit(target.url).port or 80).start()
    router = routers(ROUTER_CONNECT_TIMEOUT="2")
    router.register(target.registry_entry(base_url=f"http://127.0.0.1:{proxy.port}"))
    router.start()
    before = ask(router)
    for _ in range(1 if target.real else KILLS_ON_THE_STAND_IN):
        assert router.order("services/text/sleep", 120).status_code == 200
        proxy.stall(CALLS[Step.WAKE_ALL], engine_gets_it)
        _order_in_background(router, "wake")
        assert proxy.reached.wait(60), "it was not woken"
        router.kill()
        proxy.stalled = b""
        router.start()
        assert ask(router) == before
    proxy.stop()


def _calls_before_the_first_answer(proxy: StallingProxy) -> list[bytes]:
    """What the engine was asked until a client's request came, each once however often it was repeated."""
    calls = [line.encode() for line, _ in groupby(proxy.passed)]
    return calls[: calls.index(b"POST /v1/chat/completions")]


@pytest.mark.parametrize("order", ["offload", "wake"])
def test_the_router_is_killed_at_any_moment(target: Target, routers: Routers, order: str) -> None:
    router = routers()
    router.register(target.registry_entry())
    router.start()
    if not target.real:
        target.post("/standin/faults", json={"sleep_seconds": 0.1, "wake_seconds": 0.05})
    before, chance = ask(router), random.Random(order)
    began = time.monotonic()
    assert router.order("services/text/offload", 120).status_code == 200
    assert router.order("services/text/wake", 120).status_code == 200
    span = time.monotonic() - began
    for _ in range(3 if target.real else 2 * KILLS_ON_THE_STAND_IN):
        if order == "wake":
            assert router.order("services/text/offload", 120).status_code == 200
        _order_in_background(router, order)
        time.sleep(chance.random() * span)
        router.kill()
        router.start()
        assert ask(router) == before
    if not target.real:
        target.post("/standin/faults", json={"sleep_seconds": 0.0, "wake_seconds": 0.0})


def _order_in_background(router: Router, order: str) -> None:
    def give() -> None:
        try:
            router.order(f"services/text/{order}", 120)
        except httpx.TransportError:
            return  # the router is killed while this waits: that is the test

    ThreadPoolExecutor(1).submit(give)
