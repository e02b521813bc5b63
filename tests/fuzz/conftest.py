"""A sleeping engine behind a router. After each test its own log tells that nothing has reached it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from router_log import assert_sound

from tests.fuzz.effort import SEED
from tests.standin.processes import Engine, Router

LOOKS = ("/health", "/metrics", "/is_sleeping", "/version", "/v1/models")
"""What the router asks by itself, whatever clients do."""


def pytest_report_header() -> str:
    """How to repeat this run."""
    return f"FUZZ_SEED={SEED}"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The stand-in that nothing may reach."""
    engine = Engine().start()
    yield engine
    engine.kill()


@pytest.fixture(scope="session")
def sleeping_router(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """The router in front of it."""
    router = Router(tmp_path_factory.mktemp("router"), {"ROUTER_BODY_MAX_MIB": "1"})
    router.register(engine.registry_entry())
    router.start()
    assert router.order("services/text/wake").status_code == 200
    assert router.order("services/text/sleep").status_code == 200
    yield router
    router.stop()


@pytest.fixture
def router(sleeping_router: Router, engine: Engine) -> Iterator[Router]:
    """The same router; at the end of a test it is well, and the engine has slept undisturbed."""
    assert sleeping_router.order("services/text/sleep").status_code == 200  # whatever a failed test has left
    before, logged = calls(engine), len(sleeping_router.log())
    yield sleeping_router
    assert calls(engine) == before
    assert sleeping_router.status("text")["depth"] == "sleeping"
    assert sleeping_router.status("text")["held"] == 0
    assert_sound(sleeping_router.log()[logged:])


def calls(engine: Engine) -> list[str]:
    """What the engine was asked, less the router's own looks."""
    made = (f"{call['method']} {call['path']}" for call in engine.state()["calls"])
    return [call for call in made if call.removeprefix("GET ") not in LOOKS]
