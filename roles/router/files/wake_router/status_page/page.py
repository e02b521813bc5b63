"""The status page as HTML. Pure: everything shown is an argument; everything is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from wake_router.admin_contract import ServiceStatus, Status
from wake_router.event_sentences import sentence
from wake_router.lifecycle import PARKED
from wake_router.status_page.evidence import EvidenceView, PathEvidence
from wake_router.status_page.memory_bars import memory_section
from wake_router.status_page.plots import seconds_plot
from wake_router.status_page.units import duration, moment

ORDERS: Final = (
    ("wake", "Wake", ""),
    ("sleep", "Sleep", "Put {service} to sleep? Whoever asks next waits until it is awake again."),
    ("offload", "Offload", "Discard the weights of {service}? The next wake reads them from the disk."),
    ("pin", "Pin", ""),
    ("unpin", "Unpin", ""),
    ("drain", "Drain", "Drain {service}? New requests wait, and what isn't done in 120 s is cut off."),
    ("prove", "Prove", "Prove {service} and end its maintenance?"),
)
"""Order, what its button says, and the question before it where it hurts."""


@dataclass(frozen=True, slots=True)
class PageView:
    """What the page shows. `wakes` are measured times in seconds by service and depth."""

    status: Status
    evidence: EvidenceView
    wakes: Mapping[str, Mapping[str, Sequence[float]]]
    events: Sequence[Mapping[str, Any]]
    shown_at: str


def page(view: PageView) -> str:
    """The whole document; it can be read without JavaScript, which then loads it anew every ten seconds."""
    title = f"Front door {escape(view.status.instance)}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<noscript><meta http-equiv="refresh" content="10"></noscript>
<link rel="stylesheet" href="/status/page.css">
<script src="/status/page.js" defer></script>
</head>
<body>
<header><h1>{title}</h1><p id="connection" role="status"></p></header>
<noscript><p>Without JavaScript this page shows everything and orders nothing: use vllmctl.</p></noscript>
<main id="content">
{content(view)}
</main>
<dialog id="ask" aria-labelledby="ask-question">
<form method="dialog">
<p id="ask-question"></p>
<p id="ask-token-row"><label for="ask-token">Admin token (kept until this tab is closed or reloaded)</label>
<input id="ask-token" type="password" autocomplete="off" spellcheck="false"></p>
<menu><button value="no" id="ask-no">Cancel</button><button value="yes" id="ask-yes">Do it</button></menu>
</form>
</dialog>
</body>
</html>
"""


def content(view: PageView) -> str:
    """What changes: all sections."""
    sections = (
        _services(view.status),
        _section("memory", "Device memory", memory_section(view.status.device_memory)),
        _queue(view.status),
        _wakes(view.wakes),
        *(_path(path) for path in view.evidence.paths),
        _weights(view.evidence),
        _events(view.events),
    )
    return "\n".join(sections) + f'\n<p class="small">As of {escape(view.shown_at)}.</p>'


def _section(identity: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{identity}"><h2 id="{identity}">{title}</h2>{body}</section>'


# ---- services


def _services(status: Status) -> str:
    if not status.services:
        return _section("services", "Services", "<p>No service is deployed.</p>")
    cards = "".join(_service(service) for service in status.services)
    names = {device.device: device.name for device in status.device_memory}
    cordoned = "".join(
        f"<p>Device {escape(names.get(device, device))} is cordoned: nothing on it is woken.</p>"
        for device in status.cordoned
    )
    return _section("services", "Services", f'{cordoned}<div class="cards">{cards}</div>')


def _service(service: ServiceStatus) -> str:
    words = [service.depth.value.replace("_", " "), *service.conditions]
    marks = "".join(f'<span class="mark {escape(word.split()[0])}">{escape(word)}</span>' for word in words)
    pinned = '<span class="mark pinned">pinned</span>' if service.pinned else ""
    facts = (
        ("for", duration(service.since_seconds)),
        ("idle", duration(service.idle_seconds)),
        ("in flight", str(service.in_flight)),
        ("held", str(service.held)),
        ("devices", ", ".join(service.devices)),
        ("last wake", duration(service.last_wake_seconds)),
    )
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    names = ", ".join((service.model, *service.aliases))
    return (
        f'<article class="card"><h3>{escape(service.name)}</h3>{marks}{pinned}'
        f'<p class="small">{escape(names)}</p><dl>{listed}</dl><p class="small">{escape(service.reason)}</p>'
        f'<p class="orders">{_buttons(service)}</p></article>'
    )


def _buttons(service: ServiceStatus) -> str:
    name = escape(service.name)
    unwanted = {"pin" if service.pinned else "unpin"}
    unwanted.add("drain" if set(service.conditions) & PARKED else "prove")
    return "".join(
        f'<button type="button" hidden id="{order}-{name}" data-service="{name}" data-order="{order}" '
        f'data-question="{escape(question.format(service=service.name))}" '
        f'aria-label="{label} {name}">{label}</button>'
        for order, label, question in ORDERS
        if order not in unwanted
    )


def _queue(status: Status) -> str:
    waiting = [service for service in status.services if service.held]
    rows = "".join(
        f"<tr><td>{escape(service.name)}</td><td>{service.held}</td>"
        f"<td>{escape(service.depth.value.replace('_', ' '))}</td></tr>"
        for service in waiting
    )
    if not rows:
        return _section("queue", "Hold queue", "<p>No request waits.</p>")
    head = "<tr><th>service</th><th>requests</th><th>depth</th></tr>"
    return _section("queue", "Hold queue", f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>")


def _wakes(wakes: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(service)}</td><td>{escape(depth)}</td>"
        f"<td>{seconds_plot(f'{service} from {depth}', values)}</td>"
        f"<td>{duration(values[-1])}</td><td>{duration(max(values))}</td></tr>"
        for service, by_depth in wakes.items()
        for depth, values in by_depth.items()
        if values
    )
    if not rows:
        return _section("wakes", "Wake times", "<p>Nothing has been woken by a request yet.</p>")
    head = "<tr><th>service</th><th>from</th><th>wakes</th><th>last</th><th>longest</th></tr>"
    table = f'<div class="wide"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
    return _section("wakes", "Wake times", table)


# ---- evidence

_PROBES: Final = {"p2p": "Copies between GPUs", "integrity": "Each GPU by itself"}


def _path(path: PathEvidence) -> str:
    verdict = f'<p><span class="mark {escape(path.verdict)}">{escape(path.verdict)}</span> '
    verdict += f"probed {moment(path.finished_at)}, {duration(path.age_seconds)} ago</p>"
    doubts = list(path.suspicions)
    if not path.of_this_boot:
        doubts.insert(0, "It is of an earlier boot, so it proves nothing now: run ./box diagnose.")
    doubted = "".join(f'<p class="doubt">{escape(doubt)}</p>' for doubt in doubts)
    body = verdict + doubted + _matrix(path)
    return _section(f"evidence-{escape(path.kind)}", _PROBES.get(path.kind, escape(path.kind)), body)


def _matrix(path: PathEvidence) -> str:
    count = len(path.devices)
    if not path.pairs or not count:
        return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in path.sentences) + "</ul>"
    verdicts = {(pair.source, pair.destination): pair.verdict for pair in path.pairs}
    head = "".join(f'<th scope="col">to {place}</th>' for place in range(count))
    rows = "".join(
        f'<tr><th scope="row">from {source}</th>'
        + "".join(_cell(verdicts.get((source, destination))) for destination in range(count))
        + "</tr>"
        for source in range(count)
    )
    names = "".join(f'<li value="{place}">{escape(name)}</li>' for place, name in enumerate(path.devices))
    return (
        f'<div class="wide"><table class="matrix"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div><ol>{names}</ol>"
    )


def _cell(verdict: str | None) -> str:
    return f'<td class="{escape(verdict)}">{escape(verdict)}</td>' if verdict else "<td>·</td>"


def _weights(evidence: EvidenceView) -> str:
    problems = "".join(f'<p class="doubt">{escape(problem)}</p>' for problem in evidence.problems)
    if not evidence.weights:
        why = "has found none" if evidence.present else "has no folder of evidence (FRONTDOOR_EVIDENCE)"
        return _section("weights", "Weights", f"{problems}<p>The router {why}: no verdicts on weights.</p>")
    rows = "".join(
        f'<tr><td>{escape(each.model.rsplit("/", 1)[-1])}</td><td><span class="mark {escape(each.verdict)}">'
        f"{escape(each.verdict)}</span></td><td>{duration(each.age_seconds)} ago</td></tr>"
        for each in evidence.weights
    )
    head = "<tr><th>model</th><th>verdict</th><th>checked</th></tr>"
    return _section(
        "weights", "Weights", f"{problems}<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    )


# ---- events


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(event_row(event) for event in reversed(events))
    return _section(
        "events", "Events", f'<div class="wide"><table id="event-table"><tbody>{rows}</tbody></table></div>'
    )


def event_row(event: Mapping[str, Any]) -> str:
    """One past event: when, about which service, and what it says."""
    time = str(event.get("time", ""))
    return (
        f'<tr><td><time datetime="{escape(time)}">{escape(time[11:19])}</time></td>'
        f"<td>{escape(str(event.get('service') or ''))}</td><td>{escape(sentence(event))}</td></tr>"
    )
