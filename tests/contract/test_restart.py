"""Engines under the real launcher, restarted by the router on order and by itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.standin.processes import Engine, Router, wait_until

Engines = Callable[..., Engine]
Routers = Callable[..., Router]


def launched(engines: Engines, routers: Routers, **changes: Any) -> tuple[Engine, Router]:
    """An engine under its launcher, seen booting by the router."""
    router = routers()
    engine = Engine(token_file=router.folder / "launchers/text/token")
    router.register(engine.registry_entry(**changes))
    router.start()
    engine = engines(
        ready=False,
        boot_seconds=0.5,
        port=engine.port,
        launcher_port=engine.launcher_port,
        token_file=engine.token_file,
    )
    router.wait_for("text", "awake")
    return engine, router


def test_a_person_orders_a_restart(engines: Engines, routers: Routers) -> None:
    engine, router = launched(engines, routers)
    assert router.status("text")["restartable"] is True
    assert router.order("services/text/sleep").status_code == 200  # records the canary
    assert router.order("services/text/wake").status_code == 200
    before = router.status("text")["incarnation"]
    engine.fault(chunk_seconds=0.05)
    with ThreadPoolExecutor(4) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=60)
        wait_until(lambda: engine.state()["running"] == 1)
        order = pool.submit(router.order, "services/text/restart?deadline=20", 60)
        wait_until(lambda: "draining" in router.status("text")["conditions"])
        held = [pool.submit(router.chat, "text", 60) for _ in range(2)]
        assert stream.result().text.rstrip().endswith("[DONE]"), "what streams is drained, not cut"
        done = order.result().json()
        assert [each.result().status_code for each in held] == [200, 200], "and nobody is refused"
    assert (done["service"], done["depth"], done["canary"]) == ("text", "awake", "matched")
    assert done["incarnation"] == router.status("text")["incarnation"] != before
    assert router.status("text")["conditions"] == []
    transitions = [each["transition"] for each in router.events("transition")]
    assert transitions[-2:] == ["restart", "wake"], "the new process is proven"


def test_a_sleeping_service_is_restarted(engines: Engines, routers: Routers) -> None:
    _engine, router = launched(engines, routers)
    router.order("services/text/offload")
    done = router.order("services/text/restart", 60)
    assert done.status_code == 200
    assert done.json()["depth"] == "awake"


def test_what_was_parked_stays_parked_over_a_restart(engines: Engines, routers: Routers) -> None:
    _engine, router = launched(engines, routers)
    router.order("services/text/maintenance")
    assert router.order("services/text/restart", 60).status_code == 200
    assert router.status("text")["conditions"] == ["maintenance"]


def test_a_launcher_that_refuses_leaves_the_engine_serving(engines: Engines, routers: Routers) -> None:
    router = routers()
    engine = engines(token_file=router.folder / "the-launchers-own/token")
    router.register(engine.registry_entry())
    wrong = router.folder / "launchers/text/token"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("another token")
    router.start()
    router.order("services/text/wake")
    before = router.status("text")["incarnation"]
    refused = router.order("services/text/restart", 60)
    assert refused.status_code == 502
    assert "answered 401" in refused.json()["error"]["message"]
    assert router.status("text")["conditions"] == []
    assert router.chat("text").status_code == 200
    assert router.status("text")["incarnation"] == before


def test_an_engine_that_is_not_trusted_gets_a_new_process(engines: Engines, routers: Routers) -> None:
    engine, router = launched(engines, routers)
    router.order("services/text/offload")
    before = router.status("text")["incarnation"]
    engine.fault(reload_keeps_garbage=True)
    assert router.chat("text").json()["error"]["code"] == "model_quarantined"
    wait_until(lambda: router.status("text")["incarnation"] not in (None, before), 40)
    answer = router.chat("text", 40)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].endswith("Paris.")
    last = router.events("transition")[-1]
    assert (last["transition"], last["from_depth"]) == ("wake", "awake"), "the new one was proven first"
    assert last["canary_seconds"] > 0


def test_a_restart_waits_until_the_devices_are_free(engines: Engines, routers: Routers) -> None:
    router = routers()
    engine = engines(token_file=router.folder / "launchers/text/token")
    other = engines(name="ocr", model="Other", with_launcher=False)
    router.register(engine.registry_entry(), other.registry_entry())
    router.start()
    router.order("services/text/wake")
    router.order("services/ocr/wake")
    router.order("services/ocr/sleep")
    other.fault(wake_seconds=4)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(router.chat, "ocr")
        router.wait_for("ocr", "waking")
        assert router.order("services/text/restart", 60).status_code == 200
        assert slow.result().status_code == 200
    names = [(each["service"], each["transition"]) for each in router.events("transition")]
    assert names.index(("text", "restart")) > len(names) - 1 - names[::-1].index(("ocr", "wake"))


def test_without_a_token_nobody_restarts(engines: Engines, routers: Routers) -> None:
    engine = engines()
    router = routers()
    router.register(engine.registry_entry())
    router.start()
    assert router.status("text")["restartable"] is False
    assert router.order("services/text/restart").status_code == 409
    assert router.order("services/none/restart").status_code == 404
