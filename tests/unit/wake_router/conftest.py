"""Real stand-in engines and a real router, shared by the tests of one module where they leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standin.processes import Engine, Router


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Starts stand-ins that end with the test."""
    started: list[Engine] = []

    def start(ready: bool = True, **fields: object) -> Engine:
        engine = Engine(**fields)  # type: ignore[arg-type]
        started.append(engine)
        return engine.start(ready)

    yield start
    for engine in started:
        engine.kill()


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[Callable[..., Router]]:
    """Makes routers (not yet started) that end with the test."""
    made: list[Router] = []

    def make(**environment: str) -> Router:
        router = Router(tmp_path / f"router-{len(made)}", environment)
        made.append(router)
        return router

    yield make
    for router in made:
        router.kill()
