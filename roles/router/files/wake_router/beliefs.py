"""What may be believed about an engine that has just been found. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wake_router.service_state import Depth, Record, Step


class Belief(NamedTuple):
    """At which depth an engine is believed to be, why, and whether its canary isn't needed for that."""

    depth: Depth
    reason: str
    proven: bool = True


def believed_depth(
    record: Record | None, incarnation: str, asleep: bool, is_new: bool, reload_trusted: bool = True
) -> Belief:
    """At which depth an engine is that has just been found.

    What isn't certain counts as offloaded: the wake from there reloads the weights before anything is served,
    which is right from every depth. Only where reloading isn't trusted (`allow_level_2: never`), the canary
    decides instead.
    """
    if is_new and asleep:
        return uncertain("a new engine that something else put to sleep", asleep, reload_trusted)
    if is_new:
        return Belief(Depth.AWAKE, "a new engine process is awake")
    if record is None:
        return uncertain("nothing is known about this engine's past", asleep, reload_trusted)
    if not record.proven:
        return uncertain("it wasn't trusted when the router last saw it", asleep, reload_trusted)
    if record.open_step in (Step.SLEEP_LEVEL_1, Step.WAKE_ALL):
        # Level 1 keeps the weights, so the engine's own word is enough.
        depth = Depth.SLEEPING if asleep else Depth.AWAKE
        return Belief(depth, f"{record.open_step} was interrupted; the engine says so")
    if record.open_step is not None:
        return uncertain(f"{record.open_step} was interrupted", asleep, reload_trusted)
    if asleep == (record.depth is not Depth.AWAKE):
        return Belief(record.depth, "as it was left")
    return uncertain(f"recorded as {record.depth}, but the engine says otherwise", asleep, reload_trusted)


def uncertain(reason: str, asleep: bool, reload_trusted: bool) -> Belief:
    """What to believe when nothing is certain.

    With `allow_level_2: never` a reload may itself break the model, and this router never discards its
    weights: most probably they are whole. But somebody else may have discarded them, and the engine's own
    gauge of the level lies after a second /sleep (vLLM 0.27.1 to 0.32.0). So it is woken as from level 1, and
    serves only if its canary says so; where there is nothing to compare with, a new process is the one thing
    that is certain (`transitions` fails the proof then, and the launcher restarts it).
    """
    if reload_trusted:
        return Belief(Depth.OFFLOADED, reason)
    depth = Depth.SLEEPING if asleep else Depth.AWAKE
    return Belief(depth, f"{reason}; its weights may not be reloaded, so its canary decides", proven=False)
