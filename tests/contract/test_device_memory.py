"""What launchers measure, against what the plan allows, as operators see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wake_router.device_memory import parse_measurement

from tests.contract.conftest import Target
from tests.standin.processes import HTTP, Engine, Router, wait_until

Engines = Callable[..., Engine]
Routers = Callable[..., Router]

GPU = "GPU-00000000-0000-4000-8000-000000000000"
GB = 1_000_000_000
AWAKE, ASLEEP = 8 * GB, 1 * GB
"""What a stand-in holds of its device."""
OFTEN = {"ROUTER_MEMORY_INTERVAL": "0.5"}


def front(
    engines: Engines, routers: Routers, device: str = GPU, awake: int = 9 * GB, asleep: int = 2 * GB
) -> tuple[Engine, Router]:
    """One service, and what the plan allows it."""
    engine, router = engines(device=device), routers(**OFTEN)
    router.register(engine.registry_entry())
    router.plan_memory(("text", device, awake, asleep))
    router.start()
    assert router.order("services/text/wake").status_code == 200
    return engine, router


def comes_to(router: Router, device: str, **fields: Any) -> dict[str, Any]:
    """Wait until these fields are so."""

    def holds() -> dict[str, Any] | None:
        found = router.device_memory(device)
        return found if {name: found[name] for name in fields} == fields else None

    return dict(wait_until(holds, what=f"{fields} of {device}"))


def metrics(router: Router) -> dict[str, float]:
    """The series of the memory, by name and labels."""
    lines = HTTP.get(f"{router.admin}/metrics").text.splitlines()
    return {
        name: float(value)
        for line in lines
        if "memory" in line and not line.startswith("#")
        for name, _, value in [line.rpartition(" ")]
    }


def test_a_launcher_and_the_router_speak_of_memory_in_the_same_form(target: Target, routers: Routers) -> None:
    """Without a launcher nobody measures."""
    router = routers(**OFTEN)
    router.register(target.registry_entry())
    router.start()
    if target.launcher_url is None:
        assert router.status("text")["memory"] is None
        return
    answer = HTTP.get(f"{target.launcher_url}/memory").json()
    assert set(answer) == {
        *("schema_version", "service", "age_seconds", "resident_bytes", "devices", "problems")
    }
    wait_until(lambda: (router.status("text")["memory"] or {}).get("resident_bytes"), what="a measurement")
    found = router.device_memory("cpu:left")
    assert (found["kind"], found["limit_bytes"], found["over_plan"]) == ("cpu", None, None)
    assert found["used_bytes"] == found["shares"][0]["resident_bytes"] > 0


def test_the_stand_in_answers_as_the_real_launcher_does(engines: Engines, tmp_path: Path) -> None:
    real = engines(token_file=tmp_path / "token")
    stand_in = engines(name="embed", device=GPU)
    asked = [HTTP.get(f"http://127.0.0.1:{each.launcher_port}/memory").json() for each in (real, stand_in)]
    assert set(asked[0]) == set(asked[1])
    assert [parse_measurement(each, 100.0).resident is not None for each in asked] == [True, True]
    assert asked[0]["devices"] == {}, "it was given no GPU"


def test_what_is_allowed_and_what_is_used_follow_the_depth(engines: Engines, routers: Routers) -> None:
    _engine, router = front(engines, routers)
    for order, depth, allowed, used in (
        ("wake", "awake", 9 * GB, AWAKE),
        ("sleep", "sleeping", 2 * GB, ASLEEP),
        ("wake", "awake", 9 * GB, AWAKE),
        ("offload", "offloaded", 2 * GB, ASLEEP),
    ):
        assert router.order(f"services/text/{order}").status_code == 200
        found = comes_to(router, GPU, used_bytes=used, planned_bytes=allowed, over_plan=False)
        assert (found["name"], found["kind"], found["problems"]) == ("gpu1", "cuda", [])
        assert found["shares"][0]["depth"] == depth
        assert router.status("text")["memory"]["device_bytes"] == used
    shown = metrics(router)
    assert shown[f'frontdoor_device_memory_used_bytes{{device="{GPU}"}}'] == ASLEEP
    assert shown[f'frontdoor_device_memory_planned_bytes{{device="{GPU}"}}'] == 2 * GB
    assert shown[f'frontdoor_device_memory_total_bytes{{device="{GPU}"}}'] == 80 * 2**30
    assert shown[f'frontdoor_device_memory_limit_bytes{{device="{GPU}"}}'] == 80 * 2**30 * 88 // 100
    assert shown[f'frontdoor_planned_memory_bytes{{device="{GPU}",service="text"}}'] == 2 * GB
    assert shown['frontdoor_resident_memory_bytes{service="text"}'] == 500_000_000
    assert shown['frontdoor_memory_age_seconds{service="text"}'] >= 0


def test_what_somebody_else_uses_is_over_the_plan(engines: Engines, routers: Routers) -> None:
    engine, router = front(engines, routers)
    comes_to(router, GPU, over_plan=False)
    engine.fault(memory_of_others=20 * GB)
    assert comes_to(router, GPU, over_plan=True)["used_bytes"] == AWAKE + 20 * GB
    engine.fault(memory_of_others=0)
    comes_to(router, GPU, over_plan=False)


def test_services_on_one_device_are_added_up(engines: Engines, routers: Routers) -> None:
    text, embed = engines(), engines(name="embed", model="Other")
    router = routers(**OFTEN)
    router.register(text.registry_entry(), embed.registry_entry())
    router.plan_memory(("text", "cpu:left", 9 * GB, 9 * GB), ("embed", "cpu:left", 3 * GB, 3 * GB))
    router.start()
    for name in ("text", "embed"):
        assert router.order(f"services/{name}/wake").status_code == 200
    found = comes_to(router, "cpu:left", used_bytes=2 * AWAKE, planned_bytes=12 * GB, over_plan=True)
    assert [each["resident_bytes"] for each in found["shares"]] == [AWAKE, AWAKE]
    embed.kill()
    router.wait_for("embed", "stopped")
    comes_to(router, "cpu:left", planned_bytes=9 * GB, used_bytes=AWAKE, over_plan=False)


def test_what_can_not_be_measured_is_unknown_and_says_why(engines: Engines, routers: Routers) -> None:
    engine, router = front(engines, routers)
    comes_to(router, GPU, over_plan=False)
    engine.fault(memory_problem="nvidia-smi does not answer within 10 s")
    found = comes_to(router, GPU, used_bytes=None, over_plan=None)
    assert found["problems"] == ["nvidia-smi does not answer within 10 s"]
    assert found["planned_bytes"] == 9 * GB
    assert not any(name.startswith("frontdoor_device_memory_used_bytes") for name in metrics(router))
    assert router.chat("text").status_code == 200


def test_a_launcher_of_an_earlier_release_measures_nothing_and_hinders_nothing(
    engines: Engines, routers: Routers
) -> None:
    engine, router = engines(device=GPU), routers(**OFTEN)
    engine.fault(memory_status=404)
    router.register(engine.registry_entry())
    router.start()
    found = wait_until(lambda: router.device_memory(GPU)["problems"], what="a problem that is told")
    assert found == ["Its launcher is of an earlier release and measures nothing: deploy again."]
    assert router.chat("text").status_code == 200


@pytest.mark.parametrize("content", ["{", '{"schema_version": 2}', '{"schema_version": 1, "devices": 7}'])
def test_figures_that_can_not_be_read_stop_nothing_and_are_told(
    engines: Engines, routers: Routers, content: str
) -> None:
    engine, router = engines(device=GPU), routers(**OFTEN)
    router.register(engine.registry_entry())
    (router.folder / "device-memory.json").write_text(content)
    router.start()
    assert router.chat("text").status_code == 200
    found = comes_to(router, GPU, used_bytes=AWAKE)
    assert (found["planned_bytes"], found["limit_bytes"], found["over_plan"]) == (None, None, None)
    (told,) = router.events("device_memory")
    assert "device-memory.json can't be used" in told["error"] and "Deploy again" in told["error"]


def test_figures_of_a_later_release_are_read_as_far_as_they_are_known(
    engines: Engines, routers: Routers
) -> None:
    engine, router = engines(device=GPU), routers(**OFTEN)
    router.register(engine.registry_entry())
    router.plan_memory(("text", GPU, 9 * GB, 2 * GB))
    path = router.folder / "device-memory.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"something": "new"}))
    router.start()
    assert router.order("services/text/wake").status_code == 200
    assert comes_to(router, GPU, used_bytes=AWAKE)["planned_bytes"] == 9 * GB


def test_other_figures_count_after_a_reload(engines: Engines, routers: Routers) -> None:
    _engine, router = front(engines, routers)
    comes_to(router, GPU, over_plan=False)
    router.plan_memory(("text", GPU, 4 * GB, 2 * GB))
    assert router.order("reload").status_code == 200
    comes_to(router, GPU, planned_bytes=4 * GB, over_plan=True)


def test_nothing_is_measured_where_the_interval_is_0(engines: Engines, routers: Routers) -> None:
    engine, router = engines(device=GPU), routers(ROUTER_MEMORY_INTERVAL="0")
    router.register(engine.registry_entry())
    router.start()
    assert router.order("services/text/wake").status_code == 200
    assert router.order("services/text/sleep").status_code == 200
    assert router.status("text")["memory"] is None
    assert router.device_memory(GPU)["used_bytes"] is None
