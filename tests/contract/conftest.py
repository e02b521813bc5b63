"""The targets of the contract suite, and what its tests share.

Without options the stand-in runs in both dialects. A real engine is then the only target: the stage `real`
starts one of an image (tests/real/plugin.py), and one that runs already is given by its address:

    pytest tests/contract \
        --engine http://127.0.0.1:8001 --engine-model SmolLM2-135M-Instruct --engine-launcher http://127.0.0.1:9001

A test that uses `target` is of the common part and runs on every target. Every other one is shown on the
stand-in alone: the mark `stand_in_only` says what it is about (else its module's first sentence does), and
docs/real-engines.md is generated from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from router_log import assert_sound

from tests.standin.processes import HTTP, Engine, Router

DIALECTS = ("0.27.1", "0.32.0")


@dataclass(frozen=True)
class Target:
    """An engine that the common part runs on."""

    url: str
    launcher_url: str | None
    model: str
    version: str
    real: bool

    def registry_entry(self, **changes: Any) -> dict[str, Any]:
        """The service as the registry describes it."""
        entry: dict[str, Any] = {
            "name": "text",
            "model": self.model,
            "aliases": ["alias"],
            "task": "generate",
            "base_url": self.url,
            "launcher_url": self.launcher_url,
            "devices": ["cpu:left"],
            "definition": "0" * 64,
            "idle_sleep_seconds": 0,
            "idle_offload_seconds": 0,
            "pin": False,
            "allow_level_2": "always",
            "may_record_canary": True,
        }
        return {**entry, **changes}

    def post(self, path: str, **arguments: Any) -> Any:
        """A call to the engine itself."""
        return HTTP.post(f"{self.url}{path}", timeout=120, **arguments)

    def asleep(self) -> bool:
        """What the engine says."""
        return bool(HTTP.get(f"{self.url}/is_sleeping", timeout=60).json()["is_sleeping"])

    def running(self) -> float:
        """How many requests run in the engine, by its metrics."""
        lines = HTTP.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))

    def wake_completely(self) -> None:
        """Bring it to a sound, awake state from whatever a test left, by the level-2 sequence."""
        for path, body in (
            ("/wake_up?tags=weights", None),
            ("/collective_rpc", {"method": "reload_weights"}),
            ("/wake_up?tags=kv_cache", None),
            ("/reset_prefix_cache", None),
        ):
            assert self.post(path, json=body).status_code == 200
        assert not self.asleep()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where a real engine is."""
    parser.addoption("--engine", help="address of a real engine (dev mode), the only target then")
    parser.addoption("--engine-model", help="what it serves")
    parser.addoption("--engine-launcher", help="address of the launcher beside it")


def real_target(config: pytest.Config) -> str | None:
    """Which real engine is the only target: one that is `given`, or one that is `started`."""
    if config.getoption("--engine"):
        return "given"
    return "started" if config.getoption("--engine-image", default=None) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The same tests on every target."""
    if "target" in metafunc.fixturenames:
        real = real_target(metafunc.config)
        targets = [real] if real else [f"stand-in {dialect}" for dialect in DIALECTS]
        metafunc.parametrize("target", targets, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a real engine only the common part runs."""
    if not real_target(config):
        return
    here = Path(__file__).parent
    left = [item for item in items if here in item.path.parents and not is_common(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def is_common(item: pytest.Item) -> bool:
    """Whether a test runs on every target."""
    return "target" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One engine for a module's tests."""
    config = request.config
    if request.param == "given":
        url, model = config.getoption("--engine"), config.getoption("--engine-model")
        assert model, "--engine-model is missing"
        version = HTTP.get(f"{url}/version", timeout=60).json()["version"]
        yield Target(url, config.getoption("--engine-launcher"), model, version, True)
        return
    if request.param == "started":
        real = request.getfixturevalue("text")
        yield Target(real.url, real.launcher_url, real.model, real.version(), True)
        return
    engine = Engine(dialect=request.param.split()[1]).start()
    yield Target(engine.url, f"http://127.0.0.1:{engine.launcher_port}", engine.model, engine.dialect, False)
    engine.kill()


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Starts stand-ins that end with the test."""
    started: list[Engine] = []

    def start(ready: bool = True, **fields: Any) -> Engine:
        engine = Engine(**fields)
        started.append(engine)
        return engine.start(ready)

    yield start
    for engine in started:
        engine.kill()


@pytest.fixture
def routers(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Callable[..., Router]]:
    """Makes routers (not yet started) that end with the test."""
    made: list[Router] = []
    # A real engine on a busy machine may need longer than the usual hold deadline for its wake.
    patient = {"ROUTER_HOLD_SLEEPING": "300", "ROUTER_HOLD_OFFLOADED": "300"}
    usual = patient if real_target(pytestconfig) else {}

    def make(**environment: str) -> Router:
        router = Router(tmp_path / f"router-{len(made)}", {**usual, **environment})
        made.append(router)
        return router

    yield make
    for router in made:
        router.kill()
        assert_sound(router.log())
