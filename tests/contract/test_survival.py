"""What a router that is killed has to know again: orders, responses, and what it may believe of an engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.test_trust import fresh
from tests.contract.test_with_faults import LEVEL_2_WAKE, transitions_seen
from tests.standin.processes import HTTP, Engine, Router, wait_until

Engines = Callable[..., Engine]
Routers = Callable[..., Router]


def cordoned(router: Router) -> list[str]:
    return list(HTTP.get(f"{router.admin}/admin/status").json()["cordoned"])


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cordon(engines: Engines, routers: Routers, damaged: bool) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/sleep")
    assert router.order("devices/cpu:left/cordon").status_code == 200
    router.kill()
    if damaged:
        (router.folder / "state/orders/cordons/cpu:left.json").write_bytes(b"\x00")
    router.start()
    router.wait_for("text", "sleeping")
    assert cordoned(router) == ["cpu:left"]
    shown = HTTP.get(f"{router.admin}/metrics").text
    assert 'frontdoor_device_cordoned{device="cpu:left"} 1.0' in shown
    assert 'frontdoor_condition{condition="quarantined",service="text"} 0.0' in shown
    assert router.chat("text").status_code == 503
    assert engine.calls("/wake_up") == []
    assert router.order("devices/cpu:left/uncordon").status_code == 200
    router.kill()
    router.start()
    assert cordoned(router) == []
    assert router.chat("text").status_code == 200


def test_a_cordon_that_is_not_on_the_disk_is_said(engines: Engines, routers: Routers) -> None:
    engine = engines()
    router = routers()
    router.register(engine.registry_entry())
    (router.folder / "state").write_text("not a folder")
    router.start()
    refused = router.order("devices/cpu:left/cordon")
    assert refused.status_code == 507
    assert "forgets that" in refused.json()["error"]["message"]
    assert cordoned(router) == ["cpu:left"]


@pytest.mark.parametrize("order", ["drain?deadline=5", "maintenance"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_parked_service(engines: Engines, routers: Routers, order: str, damaged: bool) -> None:
    engine, router = fresh(engines, routers)
    assert router.order(f"services/text/{order}", operator="ada").status_code == 200
    router.kill()
    if damaged:
        (router.folder / "state/orders/parkings/text.json").write_bytes(b"{")
    router.start()
    router.wait_for("text", "awake")
    assert router.status("text")["conditions"] == ["maintenance"]
    why = HTTP.get(f"{router.admin}/admin/services/text/why").json()["why"]
    by = "somebody" if damaged else "operator 'ada'"
    assert any(f"in maintenance, ordered by {by}: " in sentence for sentence in why), why
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(router.chat, "text")
        wait_until(lambda: router.status("text")["held"] == 1)
        assert engine.served("/v1/chat") == []
        assert router.order("services/text/prove").status_code == 200
        assert held.result().status_code == 200
    router.wait_for_record("text", "awake")
    router.kill()
    router.start()
    router.wait_for("text", "awake")
    assert router.status("text")["conditions"] == [], "it was ended, and stays ended"


def test_a_drain_that_the_router_does_not_live_to_finish(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    engine.fault(chunk_seconds=0.2)
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=500)
        wait_until(lambda: engine.state()["running"] == 1)
        draining = pool.submit(router.order, "services/text/drain?deadline=60", 60)
        wait_until(lambda: router.status("text")["conditions"] == ["draining"])
        wait_until((router.folder / "state/orders/parkings/text.json").exists)
        router.kill()
        assert stream.exception() is not None or stream.result()
        assert draining.exception() is not None
    router.start()
    router.wait_for("text", "awake")
    assert router.status("text")["conditions"] == ["maintenance"]


def test_a_limit_goes_on_while_the_router_is_away(engines: Engines, routers: Routers) -> None:
    _engine, router = fresh(engines, routers)
    router.order("services/text/maintenance?limit=1")
    router.kill()
    router.start()
    assert router.chat("text").status_code == 200


def test_responses_by_id(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers)
    made = HTTP.post(f"{router.url}/v1/responses", json={"model": "text", "input": "Hello"}, timeout=20)
    name = made.json()["id"]
    router.kill()
    router.start()
    found = HTTP.get(f"{router.url}/v1/responses/{name}", timeout=20)
    assert found.status_code == 200
    assert found.json()["id"] == name
    assert HTTP.get(f"{router.url}/v1/responses/resp_unknown", timeout=20).status_code == 404
    assert len(engine.calls(f"/v1/responses/{name}")) == 1


# ---- a wake from level 1 doesn't wait for the disk


def woken_and_killed(engines: Engines, routers: Routers) -> tuple[Engine, Router, Path, bytes]:
    """What the disk said before the wake comes last; its file before that."""
    engine, router = fresh(engines, routers)
    assert router.order("services/text/sleep").status_code == 200
    intents = router.folder / "state/intents/text.json"
    before = intents.read_bytes()
    assert json.loads(before)["depth"] == "sleeping"
    assert router.chat("text").status_code == 200
    wait_until(lambda: json.loads(intents.read_bytes())["depth"] == "awake", what="the disk knows it")
    router.kill()
    return engine, router, intents, before


def test_killed_before_anything_is_written_means_a_reload(engines: Engines, routers: Routers) -> None:
    engine, router, intents, before = woken_and_killed(engines, routers)
    intents.write_bytes(before)
    router.start()
    router.wait_for("text", "offloaded")
    assert router.chat("text").status_code == 200
    assert transitions_seen(engine)[-4:] == LEVEL_2_WAKE


@pytest.mark.parametrize(("step", "depth"), [("wake_all", "awake"), ("canary", "offloaded")])
def test_killed_before_the_end_is_written(engines: Engines, routers: Routers, step: str, depth: str) -> None:
    _engine, router, intents, before = woken_and_killed(engines, routers)
    intents.write_text(json.dumps({**json.loads(before), "open_step": step}))
    router.start()
    router.wait_for("text", depth)
    assert router.chat("text").status_code == 200


def test_a_wake_that_has_yet_to_be_proven_says_so_on_the_disk(engines: Engines, routers: Routers) -> None:
    """Lest a router that is killed in it believes the engine's own word."""
    engine, router = fresh(engines, routers)
    assert router.order("services/text/sleep").status_code == 200
    engine.fault(no_memory=1, wake_seconds=600.0, half_woken_is_garbage=True)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(router.chat, "text", 120)
        wait_until(lambda: len(engine.calls("/wake_up")) == 2, what="the second try")
        router.kill()
        assert asked.exception() is not None
    found = json.loads((router.folder / "state/intents/text.json").read_bytes())
    assert (found["open_step"], found["proven"]) == ("wake_all", False)
    router.start()
    router.wait_for("text", "offloaded")


# ---- the state folder is lost, and weights may not be reloaded

NEVER = {"allow_level_2": "never"}


def reloads(engine: Engine) -> list[str]:
    return engine.calls("/collective_rpc")


def test_offload_is_refused_where_reloads_are_not_trusted(engines: Engines, routers: Routers) -> None:
    engine, router = fresh(engines, routers, NEVER)
    refused = router.order("services/text/offload")
    assert refused.status_code == 409
    assert "allow_level_2" in refused.json()["error"]["message"]
    assert engine.calls("/sleep") == []


@pytest.mark.parametrize("asleep", [False, True])
def test_lost_intents_force_no_reload(engines: Engines, routers: Routers, asleep: bool) -> None:
    engine, router = fresh(engines, routers, NEVER)
    router.order("services/text/sleep")
    if not asleep:
        router.order("services/text/wake")
    router.kill()
    shutil.rmtree(router.folder / "state/intents")
    router.start()
    assert router.chat("text").status_code == 200
    assert reloads(engine) == []
    assert router.events("transition")[-1]["from_depth"] == ("sleeping" if asleep else "awake")
    assert router.events("transition")[-1]["canary_seconds"] > 0


@pytest.mark.parametrize("asleep", [False, True])
def test_what_somebody_else_did_to_the_weights_is_found_out(
    engines: Engines, routers: Routers, asleep: bool
) -> None:
    engine, router = fresh(engines, routers, NEVER)
    router.order("services/text/sleep")
    router.kill()
    shutil.rmtree(router.folder / "state/intents")
    for path in ("/wake_up", "/sleep?level=2", *([] if asleep else ["/wake_up"])):
        assert HTTP.post(f"{engine.url}{path}").status_code == 200
    assert engine.state()["weights_good"] is False
    router.start()
    answer = router.chat("text")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_quarantined"
    assert engine.served("/v1/chat") == []


def test_a_whole_state_folder_lost_is_a_restart_where_that_can_be_ordered(
    engines: Engines, routers: Routers
) -> None:
    router = routers()
    engine = engines(token_file=router.folder / "launchers/text/token")
    router.register(engine.registry_entry(**NEVER))
    router.start()
    # The router has never seen this engine before, which is the same as having lost everything about it.
    before = router.status("text")["incarnation"]
    assert router.order("services/text/wake").status_code in (200, 502)
    wait_until(lambda: router.status("text")["incarnation"] not in (before, None))
    wait_until(lambda: router.chat("text").status_code == 200)
    assert reloads(engine) == []


def test_a_lost_state_folder_still_means_a_reload_where_that_is_trusted(
    engines: Engines, routers: Routers
) -> None:
    engine, router = fresh(engines, routers)
    router.order("services/text/sleep")
    router.kill()
    shutil.rmtree(router.folder / "state")
    router.start()
    router.wait_for("text", "offloaded")
    assert router.chat("text").status_code == 200
    assert transitions_seen(engine)[-4:] == LEVEL_2_WAKE
