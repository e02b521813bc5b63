"""Drives one service through its depths and measures. All durations in seconds.

Clients come first. A service with requests isn't touched; a request that arrives between two steps is served,
and its round is measured again. Only while its process is started anew is a service in maintenance, so that a
request waits instead of being cut; the order carries a limit, after which the router ends it by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .figures import Reading, Round
from .meter import MeterError
from .router import Admin, RouterError, Service

RESTING = ("awake", "sleeping", "offloaded")
_LOOK_SECONDS = 0.2
# The router rounds what it tells, and looks at its clock a moment after us.
_TOLERANCE_SECONDS = 0.05
_LIMIT_MARGIN_SECONDS = 60.0
_PASSING = ("unproven",)
"""Conditions that end by themselves within seconds: the router asks the canary."""


class LeftAloneError(Exception):
    """The service isn't touched, as somebody wants it; the message is a sentence."""


class CalibrationError(Exception):
    """The service can't be calibrated; the message is a sentence."""


class DisturbedError(Exception):
    """A request came in between: the round says nothing."""


@dataclass(frozen=True)
class Patience:
    """How long a service with requests is waited for, and how long one step may take."""

    quiet: float = 60.0
    step: float = 900.0


@dataclass
class Outcome:
    """What driving a service brought."""

    rounds: list[Round] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    canary: str = ""
    level_2: str = ""


def objection(service: Service) -> str | None:
    """Why a service can't be calibrated as it is, requests left aside; None when it can. Pure."""
    lasting = [condition for condition in service.conditions if condition not in _PASSING]
    if lasting:
        words = ", ".join(lasting)
        return f"{service.name} is in the condition {words} ({service.reason}); `vllmctl why {service.name}`"
    if service.depth == "stopped":
        return f"{service.name} is stopped: {service.reason}; start it, or deploy again"
    return None


class Drive:
    """One service's calibration. `read` measures its engine now."""

    def __init__(self, admin: Admin, name: str, read: Callable[[], Reading], patience: Patience) -> None:
        self._admin = admin
        self._name = name
        self._read = read
        self._patience = patience
        self.parked = False
        """Whether it is in a maintenance of ours."""

    # ---- before and after

    def await_quiet(self) -> Service:
        """The service once it rests and nobody asks it.

        Raises LeftAloneError for a pinned one, and CalibrationError for one that doesn't come to rest.
        """
        end = time.monotonic() + self._patience.quiet
        while True:
            service = self._admin.service(self._name)
            if service.pinned:
                raise LeftAloneError(f"{self._name} is pinned awake and left alone; unpin it to calibrate it")
            if problem := objection(service):
                raise CalibrationError(problem)
            if service.depth in RESTING and not service.busy and not service.conditions:
                return service
            if time.monotonic() >= end:
                raise CalibrationError(self._never_quiet(service))
            time.sleep(_LOOK_SECONDS)

    def _never_quiet(self, service: Service) -> str:
        if service.busy:
            what = f"is in use ({service.in_flight} requests in flight, {service.held} held)"
        else:
            what = f"is {service.depth} ({service.reason})"
        return (
            f"{self._name} {what} after {self._patience.quiet:g} s and isn't cut off; calibrate at a quiet "
            "time, or wait longer with calibration_quiet_seconds"
        )

    def restore(self, depth: str) -> None:
        """Bring the service back to a depth, and end its maintenance where it is ours.

        Raises CalibrationError.

        Clients that have come meanwhile keep it awake; what the router repairs and what a person has parked
        is left to them.
        """
        try:
            service = self._admin.service(self._name)
            if self.parked and "maintenance" in service.conditions:
                self._admin.order(self._name, "maintenance", limit=0)
                service = self._admin.service(self._name)
            if service.conditions or (service.busy and depth != "awake") or service.depth == depth:
                return
            order = {"awake": "wake", "sleeping": "sleep", "offloaded": "offload"}[depth]
            self._admin.order(self._name, order, timeout=self._patience.step)
        except RouterError as error:
            raise CalibrationError(f"{self._name} could not be brought back to {depth}: {error}") from error

    # ---- rounds

    def measure(self, rounds: int) -> Outcome:
        """Drive it through so many rounds, and have its level 2 judged.

        Raises LeftAloneError or CalibrationError.
        """
        outcome = Outcome()
        spare = rounds
        while len(outcome.rounds) < rounds:
            service = self.await_quiet()
            try:
                outcome.rounds.append(self._round(service, outcome))
            except DisturbedError:
                spare -= 1
                if spare < 0:
                    raise CalibrationError(
                        f"{self._name} was asked in {rounds + 1} rounds while they were measured; "
                        "calibrate at a quiet time"
                    ) from None
            except MeterError as error:
                raise CalibrationError(f"the memory of {self._name} can't be measured: {error}") from error
        self._judge(outcome)
        return outcome

    def _judge(self, outcome: Outcome) -> None:
        """Have its canary compared, and its level 2 proven where that is still missing."""
        try:
            self._require_quiet("awake")  # proving would end a maintenance that a person has ordered
            proof = self._order("prove")
        except DisturbedError:
            proof = {}
            _note(
                outcome, "its level 2 isn't judged, since requests came in between; `vllmctl prove` does it"
            )
        outcome.canary = str(proof.get("canary", "not asked"))
        outcome.level_2 = str(proof.get("level_2", "not judged"))

    def _round(self, service: Service, outcome: Outcome) -> Round:
        seconds: dict[str, float] = {}
        memory: dict[str, Reading] = {}
        if service.restartable:
            seconds["start"], memory["awake"] = self._start()
        else:
            _note(outcome, "its start isn't measured, since no launcher takes an order to restart it")
            self._order("wake")
            memory["awake"] = self._read()
        seconds["sleep"], memory["sleeping"] = self._descend("sleep", "sleeping")
        seconds["wake"] = self._rise("sleeping")
        try:
            seconds["offload"], memory["offloaded"] = self._descend("offload", "offloaded")
        except _ForbiddenError as error:
            _note(outcome, f"level 2 isn't measured: {error}")
            return Round(seconds, memory)
        seconds["wake_from_offloaded"] = self._rise("offloaded")
        return Round(seconds, memory)

    def _start(self) -> tuple[float, Reading]:
        limit = self._patience.step + _LIMIT_MARGIN_SECONDS
        self.parked = True
        self._admin_order("maintenance", limit=limit)
        try:
            self._await_no_flight()
            began = time.monotonic()
            self._order("restart", deadline=self._patience.step)
            taken = time.monotonic() - began
            return taken, self._read()
        finally:
            self._admin_order("maintenance", limit=0)
            self.parked = False

    def _await_no_flight(self) -> None:
        """Requests that slipped in before the maintenance end by themselves, or the service stays as it
        is."""
        end = time.monotonic() + self._patience.quiet
        while self._admin.service(self._name).in_flight:
            if time.monotonic() >= end:
                raise CalibrationError(self._never_quiet(self._admin.service(self._name)))
            time.sleep(_LOOK_SECONDS)

    def _descend(self, order: str, depth: str) -> tuple[float, Reading]:
        """To a depth, and its memory there; raises DisturbedError when anybody asked meanwhile."""
        self._require_quiet("awake")
        began = time.monotonic()
        self._order(order)
        taken = time.monotonic() - began
        reading = self._read()
        self._require_quiet(depth, began)
        return taken, reading

    def _rise(self, depth: str) -> float:
        self._require_quiet(depth)
        began = time.monotonic()
        self._order("wake")
        return time.monotonic() - began

    def _require_quiet(self, depth: str, since: float | None = None) -> None:
        now = time.monotonic()  # before the question, so that a late answer isn't taken for a request
        service = self._admin.service(self._name)
        if problem := objection(service):
            raise CalibrationError(problem)
        asked = since is not None and service.idle_seconds < now - since - _TOLERANCE_SECONDS
        if service.busy or service.depth != depth or asked:
            raise DisturbedError

    # ---- orders

    def _order(self, order: str, **query: float) -> dict[str, object]:
        """An order that takes its time; what makes it fail is told as what it means for the calibration."""
        try:
            return self._admin.order(self._name, order, timeout=self._patience.step, **query)
        except RouterError as error:
            service = self._admin.service(self._name)
            if service.pinned:
                raise LeftAloneError(f"{self._name} was pinned meanwhile and is left alone") from error
            if error.status == 409 and order == "offload":
                raise _ForbiddenError(str(error)) from error
            if error.status == 504 and service.busy:
                raise DisturbedError from error
            raise CalibrationError(f"{self._name} failed at '{order}': {error}") from error

    def _admin_order(self, order: str, **query: float) -> None:
        try:
            self._admin.order(self._name, order, **query)
        except RouterError as error:
            raise CalibrationError(f"{self._name} failed at '{order}': {error}") from error


class _ForbiddenError(Exception):
    """The declaration doesn't allow it."""


def _note(outcome: Outcome, sentence: str) -> None:
    if sentence not in outcome.notes:
        outcome.notes.append(sentence)
