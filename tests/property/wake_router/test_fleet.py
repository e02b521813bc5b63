"""Any order of requests, engine deaths, failures, orders and router restarts keeps the router's promises.

The rules below play the world: engines that sleep, wake and die for real (level, weights, incarnation), the
disk, and clients. The pure core decides. Whatever it forwards is checked against the truth of the world.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wake_router import scheduler
from wake_router.lifecycle import (
    BACK_OFF_MAX_SECONDS,
    PARKED,
    TARGET,
    AbandonTransition,
    Condition,
    CutInFlight,
    Depth,
    Distrusted,
    DrainOrdered,
    Effect,
    Event,
    Forward,
    Hold,
    HoldEnded,
    MaintenanceEnded,
    MaintenanceOrdered,
    Observed,
    Ordered,
    OrderWithdrawn,
    PinChanged,
    Policy,
    Presence,
    Record,
    Refuse,
    RefuseHeld,
    ReleaseHeld,
    Remember,
    RememberParked,
    RequestArrived,
    RequestEnded,
    RestartOrdered,
    RestartWithdrawn,
    ServiceState,
    StartTransition,
    Step,
    Tick,
    Transition,
    TransitionFailed,
    TransitionSucceeded,
    steps_of,
)
from wake_router.scheduler import Fleet, Member

DEVICES = {"text": frozenset({"gpu-0"}), "ocr": frozenset({"gpu-0", "gpu-1"})}
NAMES = sorted(DEVICES)
services = st.sampled_from(NAMES)


@dataclass
class World:
    """The truth about one engine, and what the disk and the clients know."""

    presence: Presence = Presence.ABSENT
    born: int = 0
    born_in: int = 0
    """The router's life in which its present process was born."""
    asleep: bool = False
    weights_good: bool = True
    record: Record | None = None
    late: list[Record] = field(default_factory=list)
    """What is on its way to the disk; each lies there before the next."""
    parked_until: float | None = None
    start: StartTransition | None = None
    steps_done: int = 0
    intent_written: bool = False
    held: int = 0
    in_flight: int = 0
    answered: int = 0
    asked: int = 0
    called: bool = False
    """Whether a client has waited for it since it served last and since a person wanted it asleep."""

    @property
    def incarnation(self) -> str:
        return f"incarnation-{self.born}"

    def write(self, record: Record) -> None:
        """Write, and wait for it."""
        self.late.clear()
        self.record = record

    @property
    def open_steps(self) -> tuple[Step, ...]:
        assert self.start is not None
        return steps_of(self.start.transition, self.start.from_depth)[self.steps_done :]


@dataclass
class Box:
    """All engines and the router's present life."""

    worlds: dict[str, World] = field(default_factory=lambda: {name: World() for name in NAMES})
    fleet: Fleet = field(default_factory=Fleet)
    now: float = 1000.0
    life: int = 1
    """How often the router has been started."""
    refused: bool = False
    """Whether a launcher has ever refused to restart its engine."""


class FrontDoor(RuleBasedStateMachine):
    """The machine that Hypothesis drives."""

    box: Box

    @initialize(
        level_2=st.sampled_from(["allowed", "not yet", "never"]),
        idle=st.sampled_from([0.0, 60.0]),
        restartable=st.booleans(),
    )
    def open(self, level_2: str, idle: float, restartable: bool) -> None:
        self.box = Box()
        self.cut: list[str] = []
        self.policy = Policy(
            idle_sleep_seconds=idle,
            idle_offload_seconds=3 * idle,
            level_2_allowed=level_2 == "allowed",
            reload_trusted=level_2 != "never",
            restartable=restartable,
            held_max=5,
        )
        self._start_router()
        for name in NAMES:
            self.engine_restarts(name)

    def _start_router(self) -> None:
        box = self.box
        members = {
            name: Member(
                policy=self.policy,
                devices=DEVICES[name],
                state=self._first_state(box.worlds[name]),
            )
            for name in NAMES
        }
        box.fleet = Fleet(members=members)

    def _first_state(self, world: World) -> ServiceState:
        now, until = self.box.now, world.parked_until
        return ServiceState(
            since=now,
            last_activity=now,
            record=world.record,
            conditions=frozenset() if until is None else frozenset({Condition.MAINTENANCE}),
            maintenance_until=until or 0.0,
        )

    # ---- the shell

    def send(self, name: str, event: Event) -> list[Effect]:
        box = self.box
        box.fleet, effects = scheduler.advance(box.fleet, name, event, box.now)
        for service, effect in effects:
            self._perform(service, effect)
        while self.cut:
            self._end_all_in_flight(self.cut.pop())
        return [effect for service, effect in effects if service == name]

    def _perform(self, name: str, effect: Effect) -> None:
        world = self.box.worlds[name]
        match effect:
            case Forward():
                world.in_flight += 1
                self._check_right(name)
            case Hold():
                world.held += 1
                world.called = True
            case Refuse():
                world.answered += 1
            case ReleaseHeld():
                assert world.held > 0
                world.in_flight += world.held
                world.held = 0
                world.called = False
                self._check_right(name)
            case RefuseHeld():
                world.answered += world.held
                world.held = 0
            case StartTransition():
                assert world.start is None, "two transitions of one service"
                assert effect.transition.value == "wake" or not world.in_flight
                world.start, world.steps_done, world.intent_written = effect, 0, False
            case AbandonTransition():
                world.start = None
            case CutInFlight():
                self.cut.append(name)
            case Remember(incarnation, depth, proven):
                world.write(Record(incarnation=incarnation, depth=depth, proven=proven))
            case RememberParked(until):
                world.parked_until = until
            case _:
                pass

    def _end_all_in_flight(self, name: str) -> None:
        while self.box.worlds[name].in_flight:
            self.finish(name)

    def _check_right(self, name: str) -> None:
        """What is forwarded reaches good weights, unless the engine has died since it was last seen."""
        world, state = self.box.worlds[name], self.state(name)
        assert state.serving
        if world.presence is Presence.UP and world.incarnation == state.incarnation:
            assert world.weights_good, "forwarded to an engine with bad weights"
            assert not world.asleep, "forwarded to a sleeping engine"

    def state(self, name: str) -> ServiceState:
        return self.box.fleet.members[name].state

    # ---- clients

    @rule(name=services)
    def ask(self, name: str) -> None:
        self.box.worlds[name].asked += 1
        answers = [
            each for each in self.send(name, RequestArrived()) if isinstance(each, Forward | Hold | Refuse)
        ]
        assert len(answers) == 1

    @precondition(lambda self: any(world.in_flight for world in self.box.worlds.values()))
    @rule(name=services)
    def finish(self, name: str) -> None:
        world = self.box.worlds[name]
        if world.in_flight:
            world.in_flight -= 1
            world.answered += 1
            self.send(name, RequestEnded())

    @precondition(lambda self: any(world.held for world in self.box.worlds.values()))
    @rule(name=services)
    def stop_waiting(self, name: str) -> None:
        world = self.box.worlds[name]
        if world.held:
            world.held -= 1
            world.answered += 1
            self.send(name, HoldEnded())

    # ---- people

    @rule(name=services, depth=st.sampled_from([Depth.SLEEPING, Depth.OFFLOADED]))
    def order_and_do(self, name: str, depth: Depth) -> None:
        self.order(name, depth)
        self.steps(name, 12)

    @rule(name=services, depth=st.sampled_from([Depth.AWAKE, Depth.SLEEPING, Depth.OFFLOADED]))
    def order(self, name: str, depth: Depth) -> None:
        world = self.box.worlds[name]
        world.called = world.called and (depth is Depth.AWAKE or world.held > 0)
        self.send(name, Ordered(depth))

    @rule(name=services)
    def withdraw(self, name: str) -> None:
        self.send(name, OrderWithdrawn())

    @rule(name=services, pinned=st.booleans())
    def pin(self, name: str, pinned: bool) -> None:
        self.send(name, PinChanged(pinned))

    @rule(name=services, seconds=st.sampled_from([0.0, 100.0]))
    def drain(self, name: str, seconds: float) -> None:
        until = self.box.now + seconds
        self.send(name, DrainOrdered(until, until + 1000.0))

    @rule(name=services)
    def begin_maintenance(self, name: str) -> None:
        self.send(name, MaintenanceOrdered(self.box.now + 1000.0))

    @rule(name=services)
    def end_maintenance(self, name: str) -> None:
        self.send(name, MaintenanceEnded())

    @rule(name=services, done=st.booleans())
    def order_restart(self, name: str, done: bool) -> None:
        self.send(name, RestartOrdered())
        if done:
            self.steps(name, 3)

    @rule(name=services)
    def withdraw_restart(self, name: str) -> None:
        self.send(name, RestartWithdrawn())

    # ---- time

    @rule(seconds=st.sampled_from([0.2, 5.0, 61.0, 200.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.box.now += seconds
        for name in NAMES:
            self.send(name, Tick())

    # ---- engines

    @rule(name=services)
    def engine_boots(self, name: str) -> None:
        world = self.box.worlds[name]
        if world.presence is not Presence.BOOTING:
            world.presence = Presence.BOOTING
            world.born += 1
            world.born_in = self.box.life
            world.asleep, world.weights_good = False, True

    @rule(name=services)
    def engine_restarts(self, name: str) -> None:
        """Start-up as it usually goes: seen while it boots, and then ready."""
        self.engine_boots(name)
        self.look(name)
        self.engine_is_ready(name)
        self.look(name)

    @rule(name=services)
    def engine_is_ready(self, name: str) -> None:
        world = self.box.worlds[name]
        if world.presence is Presence.BOOTING:
            world.presence = Presence.UP

    @rule(name=services)
    def engine_dies(self, name: str) -> None:
        self.box.worlds[name].presence = Presence.ABSENT

    @rule(name=services)
    def look(self, name: str) -> None:
        world, epoch = self.box.worlds[name], self.state(name).epoch
        if world.presence is Presence.UP:
            born_here = world.born_in == self.box.life
            self.send(name, Observed(epoch, Presence.UP, world.incarnation, world.asleep, born_here))
        else:
            self.send(name, Observed(epoch, world.presence))

    @rule(name=services)
    def is_found_unsound(self, name: str) -> None:
        self.send(name, Distrusted(self.state(name).epoch, "garbage"))

    @rule(name=services)
    def look_that_cannot_tell(self, name: str) -> None:
        world = self.box.worlds[name]
        if world.presence is Presence.UP:
            self.send(name, Observed(self.state(name).epoch, Presence.UP, world.incarnation, None))

    # ---- transitions, one call at a time

    @rule(name=services, times=st.integers(1, 12))
    def steps(self, name: str, times: int) -> None:
        for _ in range(times):
            self.step(name)

    def step(self, name: str) -> None:
        """Write the intent; the next time, make the call; at the end, confirm."""
        world = self.box.worlds[name]
        start = world.start
        if start is None:
            return
        if world.presence is not Presence.UP:
            world.start = None
            self.send(name, TransitionFailed(start.epoch, "nobody answers", unreachable=True))
        elif not world.open_steps:
            self._confirm(name, start)
        elif world.open_steps[0] is Step.RECORD_CANARY:
            assert world.weights_good or not start.fresh
            world.steps_done += 1
        elif world.open_steps[0] is Step.CANARY and not self._is_asked(start):
            world.steps_done += 1
        elif world.open_steps[0] is Step.CANARY and not world.weights_good and world.intent_written:
            world.start = None
            self.send(name, TransitionFailed(start.epoch, "garbage"))
        elif not world.intent_written:
            self._write_intent(world, start, world.open_steps[0])
        else:
            self._call(world, world.open_steps[0])
            world.steps_done += 1
            world.intent_written = False
            if start.transition is Transition.RESTART:
                self._confirm(name, start)

    def _write_intent(self, world: World, start: StartTransition, step: Step) -> None:
        proven = not start.unproven
        record = Record(incarnation=start.incarnation, depth=start.from_depth, open_step=step, proven=proven)
        if start.transition is Transition.WAKE and start.from_depth is Depth.SLEEPING and proven:
            world.late.append(record)
        else:
            world.write(record)
        world.intent_written = True

    def _is_asked(self, start: StartTransition) -> bool:
        """Without a recorded canary, a wake from level 1 by a trusted past asks nothing."""
        return start.from_depth is not Depth.SLEEPING or start.unproven

    def _confirm(self, name: str, start: StartTransition) -> None:
        world = self.box.worlds[name]
        world.start = None
        if start.transition is Transition.RESTART:
            self.send(name, TransitionSucceeded(start.epoch))
        elif world.asleep is (TARGET[start.transition] is not Depth.AWAKE):
            reached = Record(incarnation=start.incarnation, depth=TARGET[start.transition])
            if start.transition is Transition.WAKE:
                world.late.append(reached)
            else:
                world.write(reached)
            self.send(name, TransitionSucceeded(start.epoch))
        else:
            self.send(name, TransitionFailed(start.epoch, "the engine says otherwise"))

    def _call(self, world: World, step: Step) -> None:
        match step:
            case Step.SLEEP_LEVEL_1:
                world.asleep = True
            case Step.SLEEP_LEVEL_2:
                if not world.asleep:
                    world.asleep, world.weights_good = True, False
            case Step.WAKE_ALL | Step.WAKE_KV_CACHE:
                world.asleep = False
            case Step.RELOAD_WEIGHTS:
                world.weights_good = True
            case Step.ORDER_RESTART:
                world.presence = Presence.BOOTING
                world.born += 1
                world.asleep, world.weights_good = False, True
            case Step.WAKE_WEIGHTS | Step.RESET_PREFIX_CACHE | Step.RECORD_CANARY | Step.CANARY:
                pass

    @rule(
        name=services,
        depth=st.sampled_from([Depth.SLEEPING, Depth.OFFLOADED]),
        down=st.sampled_from([1, 2, 12]),
        up=st.integers(0, 12),
        how=st.sampled_from(["fails", "fails though done", "router killed", "router killed, call goes on"]),
    )
    def is_interrupted(self, name: str, depth: Depth, down: int, up: int, how: str) -> None:
        """A round trip that doesn't get through, in whatever state it began."""
        self.order(name, depth)
        self.steps(name, down)
        self.ask(name)
        self.steps(name, up)
        if how.startswith("router"):
            self.router_is_killed([], how.endswith("on"))
            self.look(name)
            self.ask(name)
            self.steps(name, 12)
        else:
            self.call_fails(name, how.endswith("done"))

    @rule(name=services, done_all_the_same=st.booleans())
    def call_fails(self, name: str, done_all_the_same: bool) -> None:
        """A call times out or is answered with 500; the engine may have carried it out."""
        world = self.box.worlds[name]
        start = world.start
        if start is None or not world.intent_written:
            return
        if done_all_the_same:
            self._call(world, world.open_steps[0])
        world.start = None
        self.send(name, TransitionFailed(start.epoch, "it timed out"))

    @rule(name=services, damaged=st.booleans(), then_steps=st.integers(0, 12))
    def memory_runs_out(self, name: str, damaged: bool, then_steps: int) -> None:
        """A wake finds too little memory; how far the engine got, and in what state, nobody knows."""
        self.order(name, Depth.AWAKE)
        world = self.box.worlds[name]
        start = world.start
        if start is None or start.transition is not Transition.WAKE or world.presence is not Presence.UP:
            return
        if start.from_depth is Depth.AWAKE:
            return
        world.weights_good = world.weights_good and not damaged
        world.start = None
        self.send(name, TransitionFailed(start.epoch, "out of memory", out_of_memory=True))
        for other in NAMES:
            self.steps(other, then_steps)

    @precondition(lambda self: any(world.start for world in self.box.worlds.values()))
    @rule(name=services)
    def launcher_refuses(self, name: str) -> None:
        world = self.box.worlds[name]
        start = world.start
        if start is not None and start.transition is Transition.RESTART:
            world.start = None
            self.box.refused = True
            self.send(name, TransitionFailed(start.epoch, "the launcher refuses"))

    @precondition(lambda self: any(world.start for world in self.box.worlds.values()))
    @rule(name=services)
    def disk_is_full(self, name: str) -> None:
        world = self.box.worlds[name]
        start = world.start
        descends = start is not None and start.transition in (Transition.SLEEP, Transition.OFFLOAD)
        if start is not None and descends and world.open_steps and not world.intent_written:
            world.start = None
            self.send(name, TransitionFailed(start.epoch, "no space", untouched=True))

    # ---- the router itself

    @rule(lost=st.lists(services, max_size=1), call_goes_on=st.booleans(), written=st.integers(0, 3))
    def router_is_killed(self, lost: list[str], call_goes_on: bool, written: int = 0) -> None:
        """At any moment; a call that was under way may still be carried out by its engine. Of what was on its
        way to the disk so many records have come there.
        """
        for name, world in self.box.worlds.items():
            if world.start is not None and world.intent_written and call_goes_on:
                self._call(world, world.open_steps[0])
            world.start = None
            world.answered += world.held + world.in_flight
            world.held = world.in_flight = 0
            world.record = [world.record, *world.late][: written + 1][-1]
            world.late.clear()
            if name in lost:
                world.record = None
        self.box.life += 1
        self._start_router()

    # ---- what must always hold

    @invariant()
    def counts_agree(self) -> None:
        for name, world in self.box.worlds.items():
            state = self.state(name)
            assert (state.held, state.in_flight) == (world.held, world.in_flight)
            assert world.asked == world.answered + world.held + world.in_flight

    @invariant()
    def never_two_transitions_on_one_device(self) -> None:
        taken: list[str] = []
        for name in NAMES:
            if self.box.worlds[name].start is not None:
                taken += DEVICES[name]
        assert len(taken) == len(set(taken))

    @invariant()
    def nothing_is_held_by_a_service_that_serves(self) -> None:
        for name in NAMES:
            state = self.state(name)
            assert not (state.serving and state.held)

    @invariant()
    def nobody_is_believed_to_ask_who_does_not(self) -> None:
        """A wish outlives its request only while the engine isn't awake, and never its answer."""
        for name, world in self.box.worlds.items():
            state = self.state(name)
            if state.called:
                assert state.depth is not Depth.AWAKE, "an awake engine needs no wake"
                assert world.called, "nobody has asked since it served or was ordered down"
            assert state.waking_since is None or not state.serving

    @invariant()
    def no_order_hangs_that_is_fulfilled(self) -> None:
        for name in NAMES:
            state = self.state(name)
            assert state.conditions or state.ordered is None or state.ordered is not state.depth

    @invariant()
    def what_is_parked_stays_parked(self) -> None:
        """Over any number of restarts of the router, until it is ended or its time has passed."""
        for name, world in self.box.worlds.items():
            parked = bool(self.state(name).conditions & PARKED)
            assert parked is (world.parked_until is not None)

    @invariant()
    def nobody_is_needed_who_falls_asleep_for_another(self) -> None:
        for name in NAMES:
            state = self.state(name)
            if state.evicted_for is not None:
                assert not state.in_flight and not state.held and not state.conditions
                assert DEVICES[name] & DEVICES[state.evicted_for]

    @invariant()
    def weights_that_may_not_be_reloaded_are_not(self) -> None:
        """Unless somebody's order has discarded them, or the engine can't be restarted."""
        for world in self.box.worlds.values():
            start = world.start
            if start is None or self.policy.reload_trusted or not self.policy.restartable:
                continue
            reloads = Step.RELOAD_WEIGHTS in steps_of(start.transition, start.from_depth)
            assert not reloads or self.box.refused, "reloaded what should have been restarted"

    @invariant()
    def no_failure_is_final(self) -> None:
        for name in NAMES:
            state = self.state(name)
            if (
                state.conditions & {Condition.QUARANTINED, Condition.FAILED}
                and state.depth is Depth.OFFLOADED
            ):
                assert state.retry_at - self.box.now <= BACK_OFF_MAX_SECONDS

    def teardown(self) -> None:
        """However it went, everything can still come right."""
        if hasattr(self, "box"):
            self.a_sound_world_answers_everybody()

    @rule()
    def a_sound_world_answers_everybody(self) -> None:
        """When engines boot, work and are looked at, all that is held gets forwarded."""
        box = self.box
        for _ in range(12):
            box.now += BACK_OFF_MAX_SECONDS + 1
            for name in NAMES:
                if box.worlds[name].presence is Presence.ABSENT:
                    self.engine_boots(name)
                self.engine_is_ready(name)
                self.look(name)
                self.send(name, Tick())
            for name in NAMES * 12:
                self.step(name)
        for name in NAMES:
            state = self.state(name)
            assert not state.held, "somebody still waits although everything works"
            # Who sleeps may well be unproven: the canary is asked when it is woken.
            left = state.conditions - {Condition.UNPROVEN}
            assert not left and (not state.conditions or state.depth is Depth.SLEEPING)


FrontDoor.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestFrontDoor = FrontDoor.TestCase
