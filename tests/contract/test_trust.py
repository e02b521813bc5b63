"""Canary, drain, maintenance and proof, on stand-ins that can be made to misbehave."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.standin.processes import HTTP, TOKEN, Engine, Router, wait_until

pytestmark = pytest.mark.stand_in_only("faults on order")

Engines = Callable[..., Engine]
Routers = Callable[..., Router]
GARBAGE = "!"


def fresh(
    engines: Engines,
    routers: Routers,
    *entries: dict[str, Any],
    task: str = "generate",
    **environment: str,
) -> tuple[Engine, Router]:
    """An engine that the router has seen booting, and so trusts."""
    router = routers(**environment)
    engine = Engine(task=task)
    router.register(engine.registry_entry(**(entries[0] if entries else {})))
    router.start()
    engine = engines(
        ready=False, task=task, boot_seconds=0.4, port=engine.port, launcher_port=engine.launcher_port
    )
    router.wait_for("text", "awake")
    return engine, router


def memory(router: Router) -> dict[str, Any]:
    return dict(json.loads((router.folder / "state/memory/text.json").read_text()))


@pytest.mark.stand_in_only("which evidence there is")
def test_nothing_is_recorded_without_evidence_that_vouches_for_it(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers, {"allow_level_2": "auto", "may_record_canary": False})
    assert router.order("services/text/sleep").status_code == 200
    assert [each["text"] for each in router.events("note")] == [
        "no canary: the evidence about its weights does not vouch for what it would record"
    ]
    assert not (router.folder / "state/memory/text.json").exists() or memory(router)["canary"] is None
    assert router.chat("text").status_code == 200, "level 1 keeps the weights"
    proof = router.order("services/text/prove").json()
    assert proof["canary"].startswith("sensible, and not recorded")
    assert proof["level_2"].endswith("nobody has read its weights' values")


@pytest.mark.stand_in_only("faults on order", instead="tests/real/test_skipped_reload.py")
def test_garbage_is_never_served(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    assert router.order("services/text/offload").status_code == 200
    assert memory(router)["canary"]["kind"] == "generate"
    engine.fault(reload_keeps_garbage=True)
    answer = router.chat("text")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_quarantined"
    assert engine.served("/v1/chat") == []
    assert len(engine.calls("/v1/completions")) == 4, "recorded with two, refused after one retry"
    assert memory(router)["level_2_broken"]
    engine.fault(reload_keeps_garbage=False)
    assert router.order("services/text/wake").status_code == 200
    assert GARBAGE not in router.chat("text").text


def test_nan_is_quarantine(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/sleep")
    engine.fault(nan_answers=True)
    assert router.chat("text").status_code == 503
    assert router.status("text")["conditions"] == ["quarantined"]


def test_nan_is_seen_without_a_recorded_canary(engines: Engines, routers: Routers) -> None:
    engine = engines(task="embed")
    router = routers()
    router.register(engine.registry_entry())
    router.start()
    engine.fault(nan_answers=True)
    refused = router.order("services/text/wake")
    assert refused.status_code == 502
    assert "NaN" in refused.json()["error"]["message"]


def test_an_awake_engine_is_asked_now_and_then(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, ROUTER_CANARY_INTERVAL="0.3")
    assert router.order("services/text/prove").json()["canary"] == "recorded"
    engine.fault(chunk_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=100)
        wait_until(lambda: engine.state()["running"] >= 1)
        engine.fault(nan_answers=True)
        events = [event for event in stream.result().text.split("\n\n") if event.strip()]
    # Not only is nothing new forwarded: what is being written is ended, and visibly.
    assert events[-1].startswith("event: error")
    assert router.chat("text").json()["error"]["code"] == "model_quarantined"


def test_counted_corruption_is_quarantine(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, ROUTER_CORRUPTION_INTERVAL="0.1")
    engine.fault(corrupted_requests=1)
    wait_until(lambda: router.status("text")["conditions"] == ["quarantined"])
    assert "NaN" in router.status("text")["reason"]


def test_a_wedged_engine_is_quarantined(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, ROUTER_WEDGED_SECONDS="0.2")
    engine.fault(hang=["*"])
    wait_until(lambda: router.status("text")["conditions"] == ["quarantined"], 20)
    assert HTTP.get(f"{engine.url}/health").status_code == 200


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_the_other_tasks_have_canaries(engines: Engines, routers: Routers, task: str) -> None:
    router = routers()
    engine = Engine(task=task)
    router.register(engine.registry_entry())
    router.start()
    engine = engines(
        ready=False, task=task, boot_seconds=0.4, port=engine.port, launcher_port=engine.launcher_port
    )
    router.wait_for("text", "awake")
    assert router.order("services/text/offload").status_code == 200
    assert memory(router)["canary"]["kind"] == task
    engine.fault(reload_keeps_garbage=True)
    assert router.order("services/text/wake").status_code == 502


@pytest.mark.parametrize(
    ("task", "refused", "kind"),
    [("rerank", "/score", "classify"), ("generate", "/v1/completions", "transcript")],
)
def test_a_classifier_and_a_transcriber_are_proven_by_what_they_can_do(
    engines: Engines, routers: Routers, task: str, refused: str, kind: str
) -> None:
    engine, router = fresh(engines, routers, task=task)
    engine.fault(fail={refused: 404})
    assert router.order("services/text/prove").json()["canary"] == "recorded"
    assert memory(router)["canary"]["kind"] == kind


def test_why_there_is_no_canary_is_said_and_an_order_tries_again(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, task="rerank")
    engine.fault(fail={"/score": 404, "/classify": 404})
    for _ in range(3):
        word = router.order("services/text/prove").json()["canary"]
        assert word.startswith("not possible: the engine doesn't answer it: /score answered 404")
    engine.fault(fail={})
    assert router.order("services/text/prove").json()["canary"] == "recorded"


def test_level_2_is_earned(engines: Engines, routers: Routers) -> None:
    timers = {"allow_level_2": "auto", "idle_offload_seconds": 0.2}
    _engine, router = fresh(engines, routers, timers)
    time.sleep(0.6)
    assert router.status("text")["depth"] == "awake"
    why = HTTP.get(f"{router.admin}/admin/services/text/why").json()["why"]
    assert any("not proven yet" in sentence for sentence in why)
    proof = router.order("services/text/prove").json()
    assert (proof["canary"], proof["level_2"]) == ("recorded", "proven by one round trip")
    router.wait_for("text", "offloaded")
    router.kill()
    router.start()
    assert router.chat("text").status_code == 200
    router.wait_for("text", "offloaded")


def test_level_2_that_comes_back_broken_is_not_earned(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, {"allow_level_2": "auto", "idle_offload_seconds": 0.2})
    engine.fault(reload_keeps_garbage=True)
    assert router.order("services/text/prove").status_code == 502
    engine.kill()
    engine.boot_seconds = 0.4
    engine.start()
    router.wait_for("text", "awake")
    proof = router.order("services/text/prove").json()
    assert proof["canary"] == "matched"
    assert "broken" in proof["level_2"]
    time.sleep(0.6)
    assert router.status("text")["depth"] == "awake"


def test_another_definition_has_to_earn_it_again(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/prove")
    router.register(engine.registry_entry(definition="1" * 64))
    router.order("reload")
    wait_until(lambda: memory(router)["canary"] is None)


def test_an_engine_is_replaced_without_a_failed_request(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    engine.fault(chunk_seconds=0.05)
    with ThreadPoolExecutor(6) as pool:
        running = pool.submit(router.chat, "text", stream=True, max_tokens=60)
        wait_until(lambda: engine.state()["running"] == 1)
        drained = router.order("services/text/drain?deadline=30")
        assert running.done() or running.result(1)
        assert running.result().text.rstrip().endswith("[DONE]")
        assert drained.json()["conditions"] == ["maintenance"]
        waiting = [pool.submit(router.chat, "text") for _ in range(3)]
        wait_until(lambda: router.status("text")["held"] == 3)
        engine.kill()
        engine.boot_seconds = 0.4
        engine.start()
        router.wait_for("text", "awake")
        time.sleep(0.3)
        assert router.status("text")["held"] == 3, "nothing goes to an engine that isn't proven"
        assert router.order("services/text/prove").json()["canary"] == "recorded"
        assert [each.result().status_code for each in waiting] == [200] * 3
    assert router.status("text")["conditions"] == []


def test_what_still_streams_at_the_deadline_is_ended_visibly(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    engine.fault(chunk_seconds=0.2)
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=100)
        plain = pool.submit(router.chat, "text", max_tokens=100)
        wait_until(lambda: engine.state()["running"] == 2)
        time.sleep(0.3)
        began = time.monotonic()
        assert router.order("services/text/drain?deadline=0.3").json()["in_flight"] == 0
        assert time.monotonic() - began < 12, "less than what streams would have taken"
        assert "event: error" in stream.result().text
        assert "[DONE]" not in stream.result().text
        assert plain.result().status_code == 503
        assert int(plain.result().headers["retry-after"]) > 0


def test_maintenance_ends_by_itself(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers)
    router.order("services/text/maintenance?limit=5")
    assert router.chat("text", headers={"Prefer": "wait=0"}).status_code == 503
    assert router.chat("text").status_code == 200


def test_a_client_is_told_of_maintenance_and_its_operator_what_ends_it(
    engines: Engines, routers: Routers
) -> None:
    _engine, router = fresh(engines, routers)
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Operator": "ada"}
    drained = HTTP.post(f"{router.admin}/admin/services/text/drain?deadline=1&limit=7000", headers=headers)
    assert drained.status_code == 200
    refused = router.chat("text", headers={"Prefer": "wait=0"})
    assert refused.status_code == 503
    assert "is in maintenance; retry in " in refused.json()["error"]["message"]
    told = " ".join(HTTP.get(f"{router.admin}/admin/services/text/why").json()["why"])
    assert "It is in maintenance, ordered by operator 'ada': requests wait until it is proven " in told
    assert "(vllmctl prove text), for at most 117 min." in told
    assert router.order("services/text/prove").status_code == 200
    assert router.chat("text").status_code == 200


def test_in_maintenance_no_timer_acts(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/maintenance")
    router.register(engine.registry_entry(idle_sleep_seconds=0.3))
    assert router.order("reload").status_code == 200
    time.sleep(0.8)
    assert router.status("text")["depth"] == "awake"
    assert engine.calls("/sleep") == []


def test_a_cordoned_device_wakes_nothing(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers)
    assert router.order("devices/nothing/cordon").status_code == 404
    assert router.order("devices/cpu:left/cordon").json() == {"device": "cpu:left", "cordoned": True}
    assert router.chat("text").status_code == 200, "what is awake goes on"
    router.order("services/text/sleep")
    refused = router.chat("text")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
    told = "Model 'Stand-In-1B' can't be woken: its device is cordoned; retry in 60 s"
    assert refused.json()["error"]["message"] == told
    for order in ("wake", "offload", "prove"):
        at_once = router.order(f"services/text/{order}")
        assert at_once.status_code == 409, order
        told = "Service 'text' can't be woken. Cordoned: cpu:left (vllmctl uncordon cpu:left)."
        assert at_once.json()["error"]["message"] == told
        (event,) = [each for each in router.events("admin") if each["path"].endswith(f"/{order}")]
        assert event["error"] == told
    assert HTTP.get(f"{router.admin}/admin/status").json()["cordoned"] == ["cpu:left"]
    router.order("devices/cpu:left/uncordon")
    assert router.chat("text").status_code == 200


def test_proving_what_is_awake_on_a_cordoned_device_leaves_it_awake(
    engines: Engines, routers: Routers
) -> None:
    """Earning level 2 would offload it, and then it couldn't be woken."""
    _engine, router = fresh(engines, routers, {"allow_level_2": "auto"})
    router.order("devices/cpu:left/cordon")
    proven = router.order("services/text/prove", 60)
    assert (proven.status_code, proven.json()["depth"]) == (200, "awake")
    assert "its device is cordoned, so it is not tried now" in proven.json()["level_2"]
    assert router.chat("text").status_code == 200
    router.order("devices/cpu:left/uncordon")
    assert "cordoned" not in router.order("services/text/prove", 60).json()["level_2"]


def test_events_are_streamed(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers)
    with httpx.stream("GET", f"{router.admin}/admin/events", timeout=10) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": listening"
        router.order("services/text/sleep")
        seen = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert seen["event"] in ("depth", "note")
        router.stop()  # a listener doesn't keep it from stopping
        assert list(lines)[-1] == ""


def test_retry_after_is_learned(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    engine.fault(wake_seconds=0.3)
    for _ in range(3):
        router.order("services/text/sleep")
        assert router.chat("text").status_code == 200
    router.order("services/text/sleep")
    answer = router.chat("text", headers={"Prefer": "wait=0"})
    learned = memory(router)["wake_seconds"]["sleeping"]
    assert learned[0] >= 0.3
    assert answer.headers["retry-after"] == str(math.ceil(max(learned)))
    assert max(learned) < 9, "not what is said where nothing was learned"


def test_a_pin_survives_a_restart(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers, {"idle_sleep_seconds": 0.2})
    router.order("services/text/pin")
    router.kill()
    router.start()
    assert router.status("text")["pinned"] is True
    router.order("services/text/wake")
    time.sleep(0.6)
    assert router.status("text")["depth"] == "awake"


def test_an_engine_that_dies_of_its_canary_is_asked_for_less(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    engine.fault(die=["/v1/completions"])
    router.order("services/text/sleep?timeout=2")
    assert memory(router)["canary_attempts"] == 1
    engine.boot_seconds = 0.4
    engine.start()
    router.wait_for("text", "awake")
    assert router.order("services/text/sleep").status_code == 200
    assert memory(router)["canary"]["kind"] == "plain"
    engine.fault(garbage=True)
    assert router.order("services/text/wake").status_code == 502


def seeing(engines: Engines, routers: Routers) -> tuple[Engine, Router]:
    """A model that takes pictures, seen booting, with its canaries recorded."""
    router = routers()
    engine = Engine(vision=True)
    router.register(engine.registry_entry())
    router.start()
    engine = engines(
        ready=False, vision=True, boot_seconds=0.4, port=engine.port, launcher_port=engine.launcher_port
    )
    router.wait_for("text", "awake")
    assert router.order("services/text/offload").status_code == 200
    assert memory(router)["image_canary"]["kind"] == "image"
    return engine, router


def test_a_model_that_sees_is_asked_about_a_picture(engines: Engines, routers: Routers) -> None:
    engine, router = seeing(engines, routers)
    assert router.chat("text").status_code == 200
    asked = [call for call in engine.state()["calls"] if call["canary"] and "chat" in call["path"]]
    assert len(asked) == 3, "twice when it was recorded, once after the wake"


def test_a_model_that_has_gone_blind_is_not_served(engines: Engines, routers: Routers) -> None:
    engine, router = seeing(engines, routers)
    engine.fault(reload_loses_sight=True)
    answer = router.chat("text")
    assert answer.status_code == 503
    assert "picture" in answer.json()["error"]["message"]
    assert engine.served("/v1/chat") == []


def test_a_model_that_sees_nothing_has_only_its_other_canary(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/offload")
    assert memory(router)["canary"]["kind"] == "generate"
    assert memory(router)["image_canary"] is None
    assert router.chat("text").status_code == 200
    asked = [call for call in engine.state()["calls"] if call["canary"] and "chat" in call["path"]]
    assert len(asked) == 1


def test_what_a_request_waited_for_is_told(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/sleep")
    engine.fault(wake_seconds=0.4, first_token_seconds=0.2)
    assert router.chat("text").status_code == 200
    # The line is written when the answer is out, which its client may see first.
    (line,) = wait_until(lambda: router.events("request"))
    assert line["wake_seconds"] >= 0.4
    assert line["canary_seconds"] >= 0.2
    parts = line["queue_seconds"] + line["wake_seconds"] + line["canary_seconds"]
    assert abs(parts - line["held_seconds"]) < 0.001
    wake = router.events("transition")[-1]
    assert wake["canary_seconds"] >= 0.2
    assert abs(wake["canary_seconds"] - line["canary_seconds"]) < 0.01
    shown = HTTP.get(f"{router.admin}/metrics").text
    assert 'frontdoor_canary_seconds_count{service="text"} 1.0' in shown
    engine.fault(first_token_seconds=0.0)
    router.chat("text")
    wait_until(lambda: len(router.events("request")) == 2)
    later = router.events("request")[-1]
    assert (later["queue_seconds"], later["wake_seconds"], later["canary_seconds"]) == (0, 0, 0)
