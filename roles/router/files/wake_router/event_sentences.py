"""Events in sentences, for people. Pure; the records themselves are what machines read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wake_router.clock import spoken

Event = Mapping[str, Any]


def with_sentence(event: Event) -> dict[str, Any]:
    """The event, and what it says as `sentence`."""
    return {**event, "sentence": sentence(event)}


def sentence(event: Event) -> str:
    """What an event says; of a kind without words of its own, its fields."""
    tell = _TELLERS.get(event["event"])
    return _fields(event) if tell is None else tell(event)


def _fields(event: Event) -> str:
    hidden = ("time", "event", "service")
    told = (f"{name}: {value}" for name, value in event.items() if name not in hidden and value is not None)
    return f"{event['event']} " + ", ".join(told)


def _depth(event: Event) -> str:
    now, before = _words(event["depth"]), _words(event["before"])
    conditions = f" ({', '.join(event['conditions'])})" if event["conditions"] else ""
    change = "" if now == before else f", was {before}"
    named = (("in_flight", "in flight"), ("held", "waiting"))
    counts = [f"{event[name]} {words}" for name, words in named if event[name]]
    requests = f"; requests: {', '.join(counts)}" if counts else ""
    return f"is {now}{conditions}{change}: {event['reason']}{requests}"


def _transition(event: Event) -> str:
    name, depth, seconds = event["transition"], _words(event["from_depth"]), _seconds(event["seconds"])
    if error := event.get("error"):
        return f"{name} from {depth} failed after {seconds}: {error}"
    if name != "wake":
        return f"{_DONE[name]} in {seconds}, was {depth}"
    canary = (
        f", {_seconds(event['canary_seconds'])} of it for its canary" if event.get("canary_seconds") else ""
    )
    if event["from_depth"] == "awake":
        return f"was asked its canary, which took {seconds}{_origin(event)}"
    return f"was woken from {depth} in {seconds}{canary}{_origin(event)}"


def _origin(event: Event) -> str:
    key = f" of key '{event['key']}'" if event.get("key") else ""
    first = f", first request {event['request']}{key}" if event.get("request") else ""
    return f": {event['cause']}{first}" if event.get("cause") else ""


def _admin(event: Event) -> str:
    who = f"operator '{event['operator']}'" if event.get("operator") else "somebody"
    order = _order(str(event["path"]).removeprefix("/admin/").split("/"))
    if event["status"] < 400:
        return f"{who} ordered {order}"
    return f"{who} ordered {order}, which failed ({event['status']}){_because(event)}"


def _order(path: list[str]) -> str:
    match path:
        case ["services" | "devices", name, order]:
            return f"'{order}' for {name}"
        case _:
            return f"'{'/'.join(path)}'"


def _because(event: Event) -> str:
    return f": {event['error']}" if event.get("error") else ""


def _device(event: Event) -> str:
    state = "is cordoned: nothing is woken on it" if event["cordoned"] else "is no longer cordoned"
    return f"device {event['device']} {state}"


def _request(event: Event) -> str:
    key = f" of key '{event['key']}'" if event.get("key") else ""
    held = f", {_seconds(event['held_seconds'])} of it held" if event["held_seconds"] >= 0.1 else ""
    error = f" ({event['error']})" if event.get("error") else ""
    answered = f"{event['method']} {event['path']} answered {event['status']}{error}"
    return f"{answered} in {_seconds(event['seconds'])}{held} (request {event['id']}{key})"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else spoken(seconds)


_DONE: Final = {"sleep": "fell asleep", "offload": "was offloaded", "restart": "was told to restart"}

_TELLERS: Final[dict[str, Callable[[Event], str]]] = {
    "admin": _admin,
    "depth": _depth,
    "device": _device,
    "device_memory": lambda event: f"device memory isn't compared with the plan: {event['error']}",
    "disk": lambda event: f"could not be written down: {event['error']}",
    "internal_error": lambda event: f"a mistake in the router itself: {event['error']}",
    "memory": lambda event: f"needs device memory: {event['reason']}",
    "note": lambda event: str(event["text"]),
    "registry": lambda event: f"the services were read anew: {'; '.join(event['changes'])}",
    "reload": lambda event: f"what was read anew can't be used, so all stays as it was: {event['error']}",
    "request": _request,
    "started": lambda event: (
        f"the router has started: clients at {event['public']}, admin at {event['admin']}"
    ),
    "stopped": lambda _: "the router has stopped",
    "stopping": lambda event: (
        f"the router stops; answers under way may take {spoken(event['limit_seconds'])} more"
    ),
    "transition": _transition,
}
