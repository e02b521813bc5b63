"""What the launcher decides, without any process."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

PATH = Path(__file__).parents[3] / "roles/vllm_service/files/launcher.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("frontdoor_launcher", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


launcher = load()
TERM = launcher.SignalReceived(signal.SIGTERM)
ONE = launcher.Incarnation("ab", 0.5)


def after(*events: Any, devices: list[str] | None = None) -> tuple[Any, list[list[Any]]]:
    state = launcher.initial(devices or [], 0.0)
    state, effects = launcher.start_if_ready(state, 0.0)
    told = [effects]
    for moment, event in enumerate(events, start=1):
        state, effects = launcher.step(state, event, float(moment))
        told.append(effects)
    return state, told


def test_devices_are_sorted_and_named_once() -> None:
    state, _ = after(devices=["cpu:b", "cpu:a", "cpu:b"])
    assert state.devices == ("cpu:a", "cpu:b")
    assert state.waiting_for == "cpu:a"


def test_the_child_starts_when_the_last_lock_is_taken() -> None:
    state, told = after(
        launcher.DeviceLocked("cpu:a"), launcher.DeviceLocked("cpu:b"), devices=["cpu:b", "cpu:a"]
    )
    assert told == [[], [], [launcher.StartChild()]]
    assert state.phase == "starting" and state.waiting_for is None


def test_without_devices_the_child_starts_at_once() -> None:
    state, told = after()
    assert told == [[launcher.StartChild()]]
    assert state.phase == "starting"


def test_locks_are_given_back_at_the_first_healthy_answer_and_only_then() -> None:
    locked = launcher.DeviceLocked("cpu:a")
    sick, well = launcher.HealthAnswered(False), launcher.HealthAnswered(True)
    state, told = after(locked, sick, sick, sick, sick, well, well, devices=["cpu:a"])
    assert told[2:] == [[], [], [], [], [launcher.ReleaseDevices()], []]
    assert state.phase == "healthy"


def test_one_late_answer_is_not_unhealthy_and_three_are() -> None:
    sick, well = launcher.HealthAnswered(False), launcher.HealthAnswered(True)
    assert after(well, sick, sick)[0].phase == "healthy"
    assert after(well, sick, sick, well, sick, sick)[0].phase == "healthy"
    assert after(well, sick, sick, sick)[0].phase == "unhealthy"
    assert after(well, sick, sick, sick, well)[0].phase == "healthy"


def test_since_is_the_moment_the_phase_began() -> None:
    well = launcher.HealthAnswered(True)
    state, _ = after(well, well, well)
    assert launcher.report(state, "text", ONE, 9.0)["since_seconds"] == 8.0
    assert launcher.report(state, "text", ONE, 9.0)["age_seconds"] == 8.5


def test_a_stop_while_waiting_ends_at_once() -> None:
    _, told = after(TERM, devices=["cpu:a"])
    assert told[-1] == [launcher.Exit(143)]


def test_a_hangup_while_waiting_does_not_end() -> None:
    state, told = after(launcher.SignalReceived(signal.SIGHUP), devices=["cpu:a"])
    assert told[-1] == [] and state.phase == "waiting_for_devices"


def test_signals_are_passed_on_each_time_and_never_become_a_kill() -> None:
    state, told = after(TERM, TERM, launcher.Tick(True))
    forward = [launcher.ForwardSignal(signal.SIGTERM)]
    assert told[1:] == [forward, forward, []]
    assert state.phase == "stopping"


def test_a_healthy_answer_does_not_undo_stopping() -> None:
    state, told = after(
        launcher.DeviceLocked("cpu:a"), TERM, launcher.HealthAnswered(True), devices=["cpu:a"]
    )
    assert state.phase == "stopping" and told[-1] == []


def test_it_ends_with_the_childs_code_when_nobody_is_left() -> None:
    state, told = after(launcher.ChildExited(3), launcher.Tick(False))
    assert told[1:] == [[launcher.SignalGroup(signal.SIGTERM)], [launcher.Exit(3)]]
    assert launcher.report(state, "text", ONE, 2.0)["child_exit"] == 3


def test_what_the_child_left_is_killed_after_a_grace_and_then_given_up() -> None:
    state, _ = after(launcher.ChildExited(0))
    alive = launcher.Tick(True)
    state, effects = launcher.step(state, alive, 1.0 + launcher.GROUP_GRACE_SECONDS / 2)
    assert effects == []
    late = 1.0 + launcher.GROUP_GRACE_SECONDS
    state, effects = launcher.step(state, alive, late)
    assert effects == [launcher.SignalGroup(signal.SIGKILL)]
    state, effects = launcher.step(state, alive, late + 0.1)
    assert effects == []
    _, effects = launcher.step(state, alive, late + launcher.GROUP_KILL_SECONDS)
    assert effects == [launcher.Exit(0)]


def test_exit_codes_as_a_shell_tells_them() -> None:
    assert launcher.exit_code_of(3 << 8) == 3
    assert launcher.exit_code_of(signal.SIGKILL) == 137


@pytest.mark.parametrize("key", ["", "a/b", "../x", ".hidden"])
def test_a_device_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(launcher.LauncherError, match="is not a device key"):
        launcher.lock_path(Path("/locks"), key)


CLOSED = launcher.HealthAnswered(False, closed=True)
HEALTHY = launcher.HealthAnswered(True)


def closed_often_enough() -> list[Any]:
    return [CLOSED] * launcher.CLOSED_PROBES_UNTIL_RESTART


def test_a_port_that_was_open_and_stays_closed_ends_the_child() -> None:
    state, told = after(HEALTHY, *closed_often_enough())
    assert state.phase == "stopping" and state.restarting
    assert told[-1] == [launcher.EndChild(signal.SIGTERM)]
    assert not any(told[2:-1])


def test_a_closed_port_is_no_news_before_the_engine_was_ready() -> None:
    state, told = after(*closed_often_enough(), *closed_often_enough())
    assert state.phase == "starting" and not any(told[1:])


def test_an_answer_of_any_kind_shows_that_the_port_is_open() -> None:
    for answer in (launcher.HealthAnswered(False), HEALTHY):
        events = [HEALTHY, *closed_often_enough()[1:], answer, *closed_often_enough()[1:]]
        state, _ = after(*events)
        assert not state.restarting


def test_a_restart_from_end_to_end() -> None:
    state, told = after(
        launcher.DeviceLocked("cpu:a"),
        HEALTHY,
        launcher.RestartOrdered(1),
        launcher.ChildExited(0),
        launcher.Tick(False),
        devices=["cpu:a"],
    )
    assert told[3:] == [
        [launcher.EndChild(signal.SIGTERM)],
        [launcher.SignalGroup(signal.SIGTERM)],
        [launcher.RenewIncarnation()],
    ]
    assert state.phase == "waiting_for_devices" and state.waiting_for == "cpu:a"
    state, effects = launcher.step(state, launcher.DeviceLocked("cpu:a"), 9.0)
    assert effects == [launcher.StartChild()] and state.child == 2
    # What was asked of the old one says nothing about the new one, and neither does an order for it.
    assert launcher.step(state, HEALTHY, 9.0)[0].phase == "starting"
    assert launcher.step(state, launcher.RestartOrdered(1), 9.0) == (state, [])
    assert launcher.step(state, launcher.HealthAnswered(True, child=2), 9.0)[0].phase == "healthy"


def test_locks_of_an_engine_that_is_restarted_while_it_starts_are_kept() -> None:
    state, told = after(
        launcher.DeviceLocked("cpu:a"),
        launcher.RestartOrdered(1),
        launcher.ChildExited(0),
        launcher.Tick(False),
        devices=["cpu:a"],
    )
    assert told[-1] == [launcher.RenewIncarnation(), launcher.StartChild()]
    assert state.locked == ("cpu:a",)


def test_a_child_that_makes_no_room_is_killed_and_then_given_up() -> None:
    state, _ = after(HEALTHY, launcher.RestartOrdered(1))
    late = state.kill_at
    assert launcher.step(state, launcher.Tick(True), late - 0.1) == (state, [])
    state, effects = launcher.step(state, launcher.Tick(True), late)
    assert effects == [launcher.EndChild(signal.SIGKILL)]
    _, effects = launcher.step(state, launcher.Tick(True), late + launcher.GROUP_KILL_SECONDS)
    assert effects == [launcher.Exit(137)]


def test_who_stops_the_container_means_it_during_a_restart_too() -> None:
    _, told = after(HEALTHY, launcher.RestartOrdered(1), TERM, launcher.ChildExited(0), launcher.Tick(False))
    assert told[-1] == [launcher.Exit(0)]


EVENTS = st.one_of(
    st.sampled_from([launcher.RestartOrdered(child) for child in (1, 2)]),
    st.sampled_from([launcher.HealthAnswered(False, closed=True, child=child) for child in (1, 2)]),
    st.just(launcher.HealthAnswered(True, child=2)),
    st.sampled_from([launcher.HealthAnswered(True), launcher.HealthAnswered(False)]),
    st.sampled_from([launcher.SignalReceived(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]),
    st.just(launcher.ChildExited(0)),
    st.sampled_from([launcher.Tick(True), launcher.Tick(False)]),
    st.just("lock the next device"),
)


@given(st.lists(st.sampled_from(["cpu:a", "cpu:b", "GPU-c"]), max_size=4), st.lists(EVENTS, max_size=30))
def test_whatever_happens_in_whatever_order(devices: list[str], events: list[Any]) -> None:
    """One child at a time, each started only with every lock held; locks given back once per child; nothing
    but a restart kills a child that lives.
    """
    state = launcher.initial(devices, 0.0)
    state, effects = launcher.start_if_ready(state, 0.0)
    told = list(effects)
    for moment, event in enumerate(events):
        if event == "lock the next device":
            if state.waiting_for is None:
                continue
            event = launcher.DeviceLocked(state.waiting_for)
        if isinstance(event, launcher.ChildExited) and not state.child_running:
            continue
        running_before, held_before = state.child_running, state.locked
        state, effects = launcher.step(state, event, float(moment))
        if launcher.StartChild() in effects:
            assert not running_before
            assert set(state.locked) == set(devices)
        if launcher.ReleaseDevices() in effects:
            assert held_before and not state.locked
        assert state.restarting or not [e for e in effects if isinstance(e, launcher.EndChild)]
        kills = [e for e in effects if isinstance(e, launcher.SignalGroup)]
        assert not (kills and state.child_running)
        assert not [e for e in effects if isinstance(e, launcher.ForwardSignal) and not running_before]
        told += effects
        if any(isinstance(effect, launcher.Exit) for effect in effects):
            break
    assert told.count(launcher.StartChild()) == state.child
    assert told.count(launcher.ReleaseDevices()) <= state.child
    assert told.count(launcher.RenewIncarnation()) in (state.child, max(0, state.child - 1))
