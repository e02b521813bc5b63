"""Who asked for a service, and who woke it. Ids and names only: never what was asked, nor from where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from wake_router.clock import spoken
from wake_router.service_state import Depth


@dataclass(frozen=True, slots=True)
class Asker:
    """One request: its id, and the name of its key (None: it needs none)."""

    request_id: str
    key: str | None = None

    def __str__(self) -> str:
        return f"request {self.request_id}" + (f" of key '{self.key}'" if self.key else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """One wake: from where, why and for whom, and when it began and ended (monotonic seconds).

    `ended` is None while it goes on, and when its engine has left in the middle of it.
    """

    from_depth: Depth
    reason: str
    began: float
    asker: Asker | None = None
    operator: str | None = None
    ended: float | None = None

    def origin(self) -> str:
        """Why it began and for whom, in words."""
        first = f", first {self.asker}" if self.asker else ""
        named = self.operator and not self.reason.startswith("ordered by ")
        operator = f", ordered by operator {self.operator!r}" if named else ""
        return f"{self.reason}{first}{operator}"


@dataclass(slots=True)
class Asking:
    """What is remembered of those who ask for one service, until the router restarts."""

    last: Asker | None = None
    last_at: float = 0.0
    caller: Asker | None = None
    """Who was the first to ask for it since it was last awake."""
    operator: str | None = None
    """Who gave the last order of a depth or pinned it, by the name that they gave themselves."""
    wake: Wake | None = None

    def note(self, asker: Asker, now: float) -> None:
        """A request has come."""
        self.last, self.last_at = asker, now

    def wake_begins(self, from_depth: Depth, reason: str, now: float, *, called: bool, ordered: bool) -> None:
        """A wake begins: requests have called for it, a person has ordered it, or it has other reasons."""
        asker, operator = self.caller if called else None, self.operator if ordered else None
        self.wake = Wake(from_depth=from_depth, reason=reason, began=now, asker=asker, operator=operator)

    def wake_ends(self, now: float) -> None:
        """The wake under way has succeeded or failed."""
        if self.wake is not None:
            self.wake = replace(self.wake, ended=now)

    def sentences(self, now: float) -> Iterator[str]:
        """The last wake and the last request, for people."""
        if (wake := self.wake) is not None:
            length = "" if wake.ended is None else f" and ended {wake.ended - wake.began:.1f} s later"
            # What is awake already is only asked its canary.
            proof = wake.from_depth is Depth.AWAKE
            what = (
                "The last proof by its canary" if proof else f"Its last wake, from {wake.from_depth.words},"
            )
            began = f"{what} began {spoken(now - wake.began)} ago{length}"
            yield f"{began}: {wake.origin()}."
        if self.last is not None:
            yield f"The last {self.last} came {spoken(now - self.last_at)} ago."
