"""What sleeping saves, by the kernel's books (`/proc/PID/smaps_rollup`), ordered through the router."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.real.asking import ask
from tests.real.fleet import Fleet
from tests.real.plugin import FIGURES
from tests.standin.processes import Router

MEBIBYTE = 2**20
SAVED_AT_LEAST = {"text": 0.9 * 257 * MEBIBYTE, "embed": 0.8 * 43 * MEBIBYTE}
"""The weights: SmolLM2-135M in bfloat16, all-MiniLM-L6-v2 in half precision. Of the KV cache only those pages
are there to be saved that were used since the last wake; tests/docker/cpu_sleep measures the first sleep.
"""


@pytest.mark.parametrize("order", ["sleep", "offload"])
@pytest.mark.parametrize("service", ["text", "embed"])
def test_sleeping_saves_memory(fleet: Fleet, proven: Callable[..., Router], service: str, order: str) -> None:
    engine = fleet.engines[service]
    router = proven().start()
    before = ask(router, service)
    awake = engine.memory()
    assert router.order(f"services/{service}/{order}", 300).status_code == 200
    asleep = engine.memory()
    assert ask(router, service) == before
    again = engine.memory()
    FIGURES.append(
        f"{engine.model} after '{order}': {awake // MEBIBYTE} MiB awake, {asleep // MEBIBYTE} MiB asleep, "
        f"{again // MEBIBYTE} MiB awake again"
    )
    assert awake - asleep > SAVED_AT_LEAST[service]
