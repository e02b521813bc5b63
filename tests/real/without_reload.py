"""The router with one mistake: a wake from level 2 doesn't reload the weights. The canary must see it."""

from __future__ import annotations

import sys

from wake_router import lifecycle
from wake_router.__main__ import main
from wake_router.lifecycle import Depth, Step, Transition

right_steps = lifecycle.steps_of


def steps_without_reload(transition: Transition, from_depth: Depth) -> tuple[Step, ...]:
    """All steps but the one that matters."""
    return tuple(step for step in right_steps(transition, from_depth) if step is not Step.RELOAD_WEIGHTS)


if __name__ == "__main__":
    lifecycle.steps_of = steps_without_reload
    sys.exit(main([]))
