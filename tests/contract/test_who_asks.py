"""Who woke a service, and that nobody can make the router's log say what isn't so."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.keys import keys_file
from tests.standin.processes import HTTP, TOKEN, Engine, Router, wait_until

pytestmark = pytest.mark.stand_in_only("who has woken a service, and whether the log can be forged")

Engines = Callable[..., Engine]
Routers = Callable[..., Router]
FORGED = "203.0.113.77"
FORWARDED = {
    "X-Forwarded-For": FORGED,
    "X-Real-IP": FORGED,
    "Forwarded": f"for={FORGED};host={FORGED}",
    "X-Forwarded-Host": FORGED,
    "X-Forwarded-Proto": "https",
}


def asleep(engines: Engines, routers: Routers, **environment: str) -> tuple[Engine, Router]:
    engine, router = engines(), routers(**environment)
    router.register(engine.registry_entry(idle_sleep_seconds=900))
    router.start()
    assert router.order("services/text/wake").status_code == 200
    assert router.order("services/text/sleep").status_code == 200
    return engine, router


def why(router: Router) -> str:
    return " ".join(HTTP.get(f"{router.admin}/admin/services/text/why").json()["why"])


def last_wake(router: Router) -> dict[str, Any]:
    wakes = [each for each in router.events("transition") if each["transition"] == "wake"]
    return {name: wakes[-1][name] for name in ("cause", "request", "key", "operator")}


def test_a_wake_names_the_request_and_the_key_that_called_first(
    engines: Engines, routers: Routers, tmp_path: Path
) -> None:
    engine, router = asleep(engines, routers, ROUTER_API_KEYS_FILE=str(keys_file(tmp_path, "one", "two")))
    engine.fault(wake_seconds=1.0)
    with ThreadPoolExecutor(2) as pool:
        headers = {"Authorization": "Bearer one", "X-Request-Id": "the-first"}
        first = pool.submit(router.chat, "text", headers=headers)
        wait_until(lambda: router.status("text")["held"] == 1)
        assert "first request the-first of key 'key-one'" in why(router), "while it wakes, too"
        headers = {"Authorization": "Bearer two", "X-Request-Id": "the-second"}
        second = pool.submit(router.chat, "text", headers=headers)
        assert [first.result().status_code, second.result().status_code] == [200, 200]
    assert last_wake(router) == {
        "cause": "requests ask for it", "request": "the-first", "key": "key-one", "operator": None,
    }  # fmt: skip
    told = why(router)
    assert "Its last wake, from sleeping, began " in told
    assert "requests ask for it, first request the-first of key 'key-one'." in told
    assert "The last request the-second of key 'key-two' came " in told
    assert "If nobody asks, it falls asleep in " in told
    assert '"one"' not in router.log() and "Bearer" not in router.log() + told


def test_a_wake_on_order_names_who_ordered_it(engines: Engines, routers: Routers) -> None:
    _engine, router = asleep(engines, routers)
    assert router.order("services/text/wake", operator="ada").status_code == 200
    assert last_wake(router) == {
        "cause": "ordered by operator 'ada': awake", "request": None, "key": None, "operator": "ada",
    }  # fmt: skip
    assert " s: ordered by operator 'ada': awake." in why(router)
    assert router.order("services/text/sleep").status_code == 200
    assert "ordered by somebody: sleeping." in why(router), "who gives no name"
    assert router.chat("text", headers={"X-Request-Id": "later"}).status_code == 200
    assert (last_wake(router)["request"], last_wake(router)["operator"]) == ("later", None)


def test_what_keeps_it_awake_and_until_when(engines: Engines, routers: Routers) -> None:
    engine, router = asleep(engines, routers)
    engine.fault(chunk_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(router.chat, "text", stream=True, max_tokens=30)
        wait_until(lambda: router.status("text")["in_flight"] == 1)
        told = why(router)
        assert stream.result().status_code == 200
    assert "1 request is in flight; it can't fall asleep before that ends." in told
    assert "It falls asleep when nobody has asked for 15 min after that." in told


def test_forwarding_headers_forge_nothing(engines: Engines, routers: Routers) -> None:
    """The router believes no proxy: an address in its log is the peer's."""
    _engine, router = asleep(engines, routers)
    assert router.chat("text", headers=FORWARDED).status_code == 200
    headers = {"Authorization": f"Bearer {TOKEN}", **FORWARDED}
    assert HTTP.post(f"{router.admin}/admin/services/text/sleep", headers=headers).status_code == 200
    assert HTTP.post(f"{router.admin}/admin/services/text/wake", headers=FORWARDED).status_code == 401
    assert HTTP.get(f"{router.admin}/admin/status", headers={"Host": FORGED}).status_code == 403
    assert FORGED not in router.log() + why(router)
    orders = router.events("admin")
    assert {each["client"].split(":")[0] for each in orders} == {"127.0.0.1"}


@pytest.mark.parametrize("name", ["two words", "a" * 129, "caf\u00e9", '{"event": "forged"}'])
def test_a_request_id_that_is_not_a_plain_word_is_replaced(
    engines: Engines, routers: Routers, name: str
) -> None:
    _engine, router = asleep(engines, routers)
    answer = router.chat("text", headers={"X-Request-Id": name.encode("latin-1")})
    assert answer.status_code == 200
    assert last_wake(router)["request"] == answer.headers["x-request-id"] != name.strip()
    lines = router.log().splitlines()
    assert all(json.loads(line)["event"] != "forged" for line in lines)
