"""Real engines that sleep, wake, die and come back behind a real router."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.standin.processes import HTTP, Engine, Router, until, wait_until

pytestmark = pytest.mark.stand_in_only("faults on order")

Engines = Callable[..., Engine]
Routers = Callable[..., Router]
LEVEL_2_WAKE = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/reset_prefix_cache"]


def behind_a_router(
    engines: Engines,
    routers: Routers,
    order: str = "",
    *,
    dialect: str = "0.32.0",
    entry: dict[str, float] | None = None,
    **environment: str,
) -> tuple[Engine, Router]:
    """A ready engine as service `text`, changes to its registry entry, and an order already carried out."""
    engine, router = engines(dialect=dialect), routers(**environment)
    router.register(engine.registry_entry(**(entry or {})))
    router.start()
    if order:
        assert router.order(f"services/text/{order}").status_code == 200
    return engine, router


def transitions_seen(engine: Engine) -> list[str]:
    calls = [call["path"] for call in engine.state()["calls"] if call["method"] == "POST"]
    return [path for path in calls if not path.startswith("/v1/")]


@pytest.mark.parametrize("dialect", ["0.27.1", "0.32.0"])
def test_both_levels_in_both_dialects(engines: Engines, routers: Routers, dialect: str) -> None:
    engine, router = behind_a_router(engines, routers, "wake", dialect=dialect)
    before = len(transitions_seen(engine))
    assert router.order("services/text/sleep").json()["depth"] == "sleeping"
    assert router.chat("text").status_code == 200
    assert router.order("services/text/sleep").json()["depth"] == "sleeping"
    assert router.order("services/text/offload").json()["depth"] == "offloaded"
    assert router.chat("text").json()["choices"][0]["message"]["content"].endswith("Paris.")
    assert transitions_seen(engine)[before:] == [
        "/sleep?level=1&mode=wait",
        "/wake_up",
        "/sleep?level=1&mode=wait",
        "/wake_up",  # the way from level 1 to level 2 leads through awake
        "/sleep?level=2&mode=wait",
        *LEVEL_2_WAKE,
    ]


def test_a_request_held_in_maintenance_does_not_undo_the_next_sleep(
    engines: Engines, routers: Routers
) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    assert router.order("services/text/drain?deadline=1").status_code == 200
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(router.chat, "text")
        wait_until(lambda: router.status("text")["held"] == 1)
        assert router.order("services/text/prove").status_code == 200
        assert held.result().status_code == 200
    asleep = router.order("services/text/sleep")
    assert (asleep.status_code, asleep.json().get("depth")) == (200, "sleeping"), asleep.text
    wakes = len(engine.calls("/wake_up"))
    assert router.chat("text").status_code == 200
    assert len(engine.calls("/wake_up")) == wakes + 1, "it slept until somebody asked"


def test_many_requests_are_one_wake(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "offload")
    before = len(transitions_seen(engine))
    engine.fault(reload_seconds=0.5)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: router.chat("text").status_code, range(20)))
    assert answers == [200] * 20
    assert transitions_seen(engine)[before:] == LEVEL_2_WAKE


def test_the_wake_belongs_to_the_service(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "sleep")
    engine.fault(wake_seconds=0.6)
    with pytest.raises(httpx.ReadTimeout):
        router.chat("text", timeout=0.2)
    wait_until(lambda: router.status("text")["held"] == 0)
    router.wait_for("text", "awake")
    assert engine.served("/v1/chat") == []


def test_hold_deadline(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "offload", ROUTER_HOLD_OFFLOADED="0.3")
    engine.fault(reload_seconds=0.8)
    answer = router.chat("text")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "60"
    assert answer.json()["error"]["message"] == "Model 'Stand-In-1B' is waking from offload; retry in 60 s"
    assert answer.json()["error"]["sleep_depth"] == "offloaded"
    router.wait_for("text", "awake")  # the wake went on
    assert router.chat("text").status_code == 200


def test_idle_timers(engines: Engines, routers: Routers) -> None:
    timers = {"idle_sleep_seconds": 0.4, "idle_offload_seconds": 4.0}
    engine, router = behind_a_router(engines, routers, entry=timers)
    engine.fault(chunk_seconds=0.25)
    # A stream that is longer than the timer is never cut off.
    assert router.chat("text", stream=True).text.rstrip().endswith("[DONE]")
    router.wait_for("text", "sleeping")
    router.wait_for("text", "offloaded")
    # Looking at models, health and metrics is no activity.
    calls = len(transitions_seen(engine))
    HTTP.get(f"{router.url}/v1/models")
    HTTP.get(f"{router.url}/health")
    HTTP.get(f"{router.admin}/metrics")
    time.sleep(0.5)
    assert len(transitions_seen(engine)) == calls
    assert router.status("text")["depth"] == "offloaded"


def test_a_request_that_races_the_idle_timer_is_answered(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, entry={"idle_sleep_seconds": 0.01})
    engine.fault(sleep_seconds=0.02, wake_seconds=0.02)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: _later(router, number), range(60)))
    assert answers == [200] * 60
    assert len(router.events("transition")) > 4


def _later(router: Router, number: int) -> int:
    time.sleep(number % 7 * 0.05)
    return router.chat("text").status_code


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(engines: Engines, routers: Routers, stream: bool) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    engine.fault(first_token_seconds=30)

    async def ask_and_leave() -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            body = {"model": "text", "messages": [], "stream": stream}
            asking = asyncio.create_task(
                client.post(f"{router.url}/v1/chat/completions", json=body, timeout=30)
            )
            await until(lambda: engine.state()["running"] == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask_and_leave())
    wait_until(lambda: engine.state()["running"] == 0, 15.0, "free long before it would answer")
    wait_until(lambda: router.status("text")["in_flight"] == 0, 15.0)
    assert [line["status"] for line in router.events("request")] == [499]


@pytest.mark.parametrize("how", ["die_after_chunks", "cut_after_chunks"])
def test_an_engine_that_dies_in_a_stream(engines: Engines, routers: Routers, how: str) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    engine.fault(**{how: 2}, chunk_seconds=0.02)
    text = router.chat("text", stream=True).text
    events = [event for event in text.split("\n\n") if event.strip()]
    assert events[-1].startswith("event: error\ndata: ")
    error = json.loads(events[-1].split("data: ")[1])["error"]
    assert error["code"] == "engine_failed"
    assert "[DONE]" not in text


def test_an_engine_that_dies_before_it_answers(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    engine.fault(die=["/v1/chat/completions"])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(router.chat, "text")
        router.wait_for("text", "stopped")
        engine.start()
        assert answer.result().status_code == 200, "it was asked again once the engine was back"


def test_a_connection_that_breaks_is_tried_once_more(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    engine.fault(drop=["/v1/chat/completions"])
    assert router.chat("text").status_code == 502
    assert len(engine.served("/v1/chat")) == 2


def test_a_request_waits_for_an_engine_that_boots(engines: Engines, routers: Routers) -> None:
    router = routers()
    engine = Engine(boot_seconds=3.0)
    router.register(engine.registry_entry())
    router.start()
    assert router.status("text")["depth"] == "stopped"
    engine = engines(ready=False, boot_seconds=3.0, port=engine.port, launcher_port=engine.launcher_port)
    router.wait_for("text", "restarting")
    assert router.chat("text").status_code == 200
    # It was seen while it booted, so it is fresh and needs no reload.
    assert transitions_seen(engine) == []


def test_an_engine_that_starts_between_two_looks_is_new(engines: Engines, routers: Routers) -> None:
    """The router looks once in an hour, and once more for the order to prove it: nobody saw it boot."""
    router = routers(ROUTER_OBSERVE_INTERVAL="3600")
    engine = Engine()
    router.register(engine.registry_entry())
    router.start()
    engine = engines(port=engine.port, launcher_port=engine.launcher_port)
    assert router.order("services/text/prove").json()["canary"] == "recorded"
    assert transitions_seen(engine) == []


def test_an_engine_that_is_older_than_the_router_is_not_new(engines: Engines, routers: Routers) -> None:
    router = routers()
    router.register(engines().registry_entry(allow_level_2="never"))
    router.start()
    router.wait_for("text", "awake")
    proof = router.order("services/text/prove")
    assert "isn't fresh" in proof.json().get("canary", proof.text)


def test_a_failed_wake_is_quarantined_and_repaired(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "offload")
    engine.fault(fail={"reload_weights": 500})
    answer = router.chat("text")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_quarantined"
    assert engine.calls("/wake_up?tags=kv_cache") == [], "after a failed reload the next step is not taken"
    status = router.status("text")
    assert status["conditions"] == ["quarantined"]
    assert 0 < status["retry_in_seconds"] <= 5
    assert router.chat("text").status_code == 503
    engine.fault(fail={})
    assert router.order("services/text/wake").json()["depth"] == "awake"
    assert router.chat("text").status_code == 200


def test_a_wake_that_breaks_off_is_retried_with_back_off(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    router.order("services/text/sleep")
    engine.fault(drop=["/wake_up"])
    before = len(engine.calls("/wake_up"))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(router.chat, "text")
        wait_until(lambda: len(engine.calls("/wake_up")) > before)
        time.sleep(1.0)
        assert len(engine.calls("/wake_up")) == before + 1
        engine.fault(drop=[])
        assert held.result().status_code == 200, "it waited through the back-off"


def test_a_new_incarnation_ends_quarantine(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "sleep")
    engine.fault(fail={"/wake_up": 500})
    assert router.chat("text").status_code == 503
    engine.kill()
    engine.start()
    router.wait_for("text", "awake")
    assert router.chat("text").status_code == 200


def test_the_router_restarts(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers)
    for depth, order in (("awake", "wake"), ("sleeping", "sleep"), ("offloaded", "offload")):
        assert router.order(f"services/text/{order}").json()["depth"] == depth
        router.wait_for_record("text", depth)
        router.kill()
        router.start()
        router.wait_for("text", depth)
    calls = len(transitions_seen(engine))
    assert router.chat("text").status_code == 200
    assert transitions_seen(engine)[calls:] == LEVEL_2_WAKE


def test_a_damaged_intent_file_means_offloaded(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "wake")
    router.order("services/text/sleep")
    router.kill()
    (router.folder / "state/intents/text.json").write_bytes(b"\x00")
    router.start()
    router.wait_for("text", "offloaded")
    assert router.chat("text").status_code == 200
    assert transitions_seen(engine)[-4:] == LEVEL_2_WAKE


def test_a_full_disk_keeps_a_service_awake(engines: Engines, routers: Routers) -> None:
    engine = engines()
    router = routers()
    router.register(engine.registry_entry())
    (router.folder / "state").write_text("not a folder")
    router.start()
    assert router.order("services/text/wake").status_code == 200
    answer = router.order("services/text/sleep")
    assert answer.status_code == 502
    assert "can't be written" in answer.json()["error"]["message"]
    assert router.status("text")["depth"] == "awake"
    assert [path for path in transitions_seen(engine) if path.startswith("/sleep")] == []


def test_reload_drops_no_stream(engines: Engines, routers: Routers) -> None:
    first, second = engines(), engines(name="ocr", model="Other", device="cpu:right")
    router = routers()
    router.register(first.registry_entry())
    router.start()
    router.order("services/text/wake")
    first.fault(chunk_seconds=0.15)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(router.chat, "text", stream=True)
        wait_until(lambda: first.state()["running"] == 1)
        router.register(first.registry_entry(aliases=["new"]), second.registry_entry())
        answer = router.order("reload").json()
        assert answer["changes"] == ["service text: changed", "service ocr: added"]
        router.register(second.registry_entry())
        assert router.order("reload").json()["changes"] == ["service text: removed"]
        assert router.chat("text").status_code == 404
        assert stream.result().text.rstrip().endswith("[DONE]")
    assert router.chat("other").status_code == 200
    (router.folder / "registry.json").write_text("{}")
    refused = router.order("reload")
    assert refused.status_code == 422
    assert router.chat("other").status_code == 200


def test_a_moved_service_is_found_at_its_new_address(engines: Engines, routers: Routers) -> None:
    first, second = engines(), engines()
    router = routers()
    router.register(first.registry_entry())
    router.start()
    assert router.chat("text").status_code == 200
    router.register(second.registry_entry())
    assert router.order("reload").json()["changes"] == ["service text: moved to another address"]
    assert router.chat("text").status_code == 200
    assert len(second.served("/v1/chat")) == 1


def test_graceful_stop(engines: Engines, routers: Routers) -> None:
    engine, sleeper = engines(), engines(name="ocr", model="Other", device="cpu:right")
    router = routers()
    router.register(engine.registry_entry(), sleeper.registry_entry())
    router.start()
    router.order("services/text/wake")
    router.order("services/ocr/sleep")
    engine.fault(chunk_seconds=0.1)
    sleeper.fault(wake_seconds=1.0)
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(router.chat, "text", stream=True)
        held = pool.submit(router.chat, "ocr")
        wait_until(lambda: engine.state()["running"] == 1)
        wait_until(lambda: router.status("ocr")["held"] == 1)
        router.stop()
        assert stream.result().text.rstrip().endswith("[DONE]")
        assert held.result().status_code == 503
        assert held.result().json()["error"]["code"] == "router_stopping"
    assert router.process is not None
    assert router.process.returncode == 0
    router.start()
    router.wait_for("ocr", "awake")  # its wake was finished before the router went


def test_what_streams_too_long_at_a_stop_is_ended_visibly(engines: Engines, routers: Routers) -> None:
    engine, router = behind_a_router(engines, routers, "wake", ROUTER_STOP_TIMEOUT="0.5")
    engine.fault(chunk_seconds=0.2)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=200)
        wait_until(lambda: engine.state()["running"] == 1)
        time.sleep(0.3)
        router.stop()
        assert "event: error" in stream.result().text
    wait_until(lambda: engine.state()["running"] == 0)


def test_services_of_one_device_take_turns(engines: Engines, routers: Routers) -> None:
    one, two = engines(), engines(name="ocr", model="Other")
    router = routers()
    router.register(one.registry_entry(), two.registry_entry())
    router.start()
    router.order("services/text/sleep")
    router.order("services/ocr/sleep")
    for engine in (one, two):
        engine.fault(wake_seconds=0.3)
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        assert [answer.status_code for answer in pool.map(router.chat, ["text", "ocr"])] == [200, 200]
    assert time.monotonic() - began > 0.6
