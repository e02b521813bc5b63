"""How much is tried, and from which seed: `FUZZ_SEED=N ./box test contract` repeats a run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, seed, settings

SEED: Final = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(2**32))


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Tries so many examples, which depend on the seed alone."""

    def decorate(test: Callable[..., None]) -> Callable[..., Any]:
        limits = settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )
        return seed(SEED)(limits(test))

    return decorate
