"""Fifty requests raced against the idle timer."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.real.asking import ask
from tests.real.fleet import RealEngine
from tests.real.plugin import FIGURES
from tests.standin.processes import Router, wait_until

ROUNDS, AT_ONCE = 10, 5
ARRIVED_FALLING_ASLEEP_AT_LEAST = 10


def test_no_request_that_races_the_idle_timer_fails(text: RealEngine, proven: Callable[..., Router]) -> None:
    router = proven(text.registry_entry(idle_sleep_seconds=0.001)).start()
    before = ask(router)
    chance = random.Random(0)

    def ask_later(seconds: float) -> str:
        time.sleep(seconds)
        return ask(router)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(ROUNDS):
            wait_until(lambda: router.status("text")["depth"] in ("falling_asleep", "sleeping"), 300)
            delays = [chance.random() * 0.2 for _ in range(AT_ONCE)]
            assert list(pool.map(ask_later, delays)) == [before] * AT_ONCE
    requests = router.events("request")[1:]
    assert [each["status"] for each in requests] == [200] * ROUNDS * AT_ONCE
    found = Counter(each["found"] for each in requests)
    FIGURES.append(f"of {len(requests)} requests that raced the idle timer, found: {dict(found)}")
    assert found["falling_asleep"] >= ARRIVED_FALLING_ASLEEP_AT_LEAST
