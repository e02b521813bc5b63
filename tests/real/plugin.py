"""Runs the contract suite's common part, and the tests beside this, on real engines of one image.

python -m pytest -p tests.real.plugin tests/contract tests/real --engine-image NAME:VERSION
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from router_log import assert_sound

from tests.real.fleet import Fleet, RealEngine, memory_of, router_in
from tests.standin.processes import Router

FIGURES: list[str] = []
"""Sentences with what was measured, for the end of the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which image the engines run on."""
    parser.addoption("--engine-image", help="image of real engines, the only target then")


@dataclass(eq=False)
class Counted:
    """How many tests of the common part were to run, and how many passed.

    Compared by identity: pytest keeps plugins in sets.
    """

    collected: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which tests run on every target."""
        self.collected = {item.nodeid for item in session.items if "target" in _fixtures(item)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Which passed."""
        if report.when == "call" and report.passed and report.nodeid in self.collected:
            self.passed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A test of the common part that didn't pass is a failure, however it was left out."""
        if session.exitstatus == pytest.ExitCode.OK and self.passed != self.collected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What was shown, in figures."""
        terminalreporter.section("on real engines")
        for figure in FIGURES:
            terminalreporter.line(figure)
        terminalreporter.line(
            f"{len(self.passed)} of the common part's {len(self.collected)} tests passed on a real engine"
        )


def _fixtures(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))


def pytest_configure(config: pytest.Config) -> None:
    """Count."""
    config.pluginmanager.register(Counted())


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both engines, seen booting and proven by a router, whose state `proven` keeps."""
    image = request.config.getoption("--engine-image")
    assert image, "--engine-image is missing"
    fleet = Fleet(image, tmp_path_factory.mktemp("fleet"))
    try:
        fleet.up()
        entries = [engine.registry_entry() for engine in fleet.engines.values()]
        router = router_in(fleet.folder / "router", entries).start()
        try:
            fleet.wait()
            for name in fleet.engines:
                router.wait_for(name, "awake", 60)
                proof = router.order(f"services/{name}/prove", 300)
                assert proof.status_code == 200, proof.text
                assert memory_of(router, name)["canary"], proof.text
        finally:
            router.stop()
        yield fleet
    except AssertionError:
        for engine in fleet.engines.values():
            print(f"--- {engine.container}\n{engine.log()[-4000:]}")
        raise
    finally:
        fleet.down()


@pytest.fixture(scope="session")
def text(fleet: Fleet) -> RealEngine:
    """The engine that generates."""
    return fleet.engines["text"]


@pytest.fixture(scope="session")
def embed(fleet: Fleet) -> RealEngine:
    """The engine that embeds."""
    return fleet.engines["embed"]


@pytest.fixture
def proven(fleet: Fleet, tmp_path: Path) -> Iterator[Callable[..., Router]]:
    """Makes routers (not yet started) that know the engines' canaries; they end with the test."""
    made: list[Router] = []

    def make(*entries: dict[str, Any], program: tuple[str, ...] = (), **environment: str) -> Router:
        folder = tmp_path / f"router-{len(made)}"
        shutil.copytree(fleet.folder / "router/state", folder / "state")
        services = entries or tuple(engine.registry_entry() for engine in fleet.engines.values())
        router = router_in(folder, services, *program, **environment)
        made.append(router)
        return router

    yield make
    for router in made:
        router.kill()
        assert_sound(router.log())
