"""Tables for people, from what the router and the machine say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from vllmctl.containers import Memory
from vllmctl.exposition import Usage
from vllmctl.findings import Finding, Level
from vllmctl.measures import duration, rate, size
from vllmctl.models import Model

Json = dict[str, Any]

_DEPTH_STYLES = {"awake": "green", "stopped": "red", "waking": "cyan", "falling_asleep": "cyan"}
_LEVEL_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.CRITICAL: "red", Level.UNKNOWN: "magenta"}


def _table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column == "SERVICE")
    return table


def depth_of(service: Json) -> str:
    """Depth and conditions in the users' words."""
    words = [str(service["depth"]).replace("_", " "), *service["conditions"]]
    return ", ".join(words) + (", pinned" if service["pinned"] else "")


def _styled_depth(service: Json) -> str:
    bad = set(service["conditions"]) & {"quarantined", "failed"}
    style = "red" if bad else _DEPTH_STYLES.get(service["depth"], "default")
    return f"[{style}]{escape(depth_of(service))}[/{style}]"


def memory_text(measured: Memory | None, service: Json) -> str:
    """What a service holds, on its GPUs and of the host: as it was measured here, or else by its launcher."""
    told: Json = service.get("memory") or {}  # a router of an earlier release has none
    device = measured.device_bytes if measured and measured.device_bytes else told.get("device_bytes")
    host = told.get("resident_bytes")
    if measured is not None and measured.host_bytes is not None:
        host = measured.host_bytes
    parts = [f"{size(device)} device"] if device else []
    parts += [f"{size(host)} host"] if host is not None else []
    return ", ".join(parts) or "-"


def status(services: Sequence[Json], memory: Mapping[str, Memory]) -> Table:
    """One line per service."""
    table = _table(
        *("SERVICE", "MODEL", "DEPTH", "SINCE", "IDLE", "IN FLIGHT", "HELD", "DEVICES", "MEMORY", "LAST WAKE")
    )
    for service in services:
        table.add_row(
            service["name"],
            escape(service["model"]),
            _styled_depth(service),
            duration(service["since_seconds"]),
            duration(service["idle_seconds"]),
            str(service["in_flight"]),
            str(service["held"]),
            escape(", ".join(service["devices"])),
            memory_text(memory.get(service["name"]), service),
            duration(service["last_wake_seconds"]),
        )
    return table


def usage(found: Sequence[Usage]) -> Table:
    """One line per service and key."""
    numbers = ("REQUESTS", "FAILED", "PROMPT TOKENS", "COMPLETION TOKENS")
    table = _table("SERVICE", "KEY", *numbers, right=frozenset(numbers))
    for each in found:
        counts = (each.requests, each.failed, each.prompt_tokens, each.completion_tokens)
        table.add_row(each.service, escape(each.key or "(none)"), *(f"{count:,}" for count in counts))
    return table


def top(services: Sequence[Json], before: Sequence[Usage], now: Sequence[Usage], seconds: float) -> Table:
    """What happens per second, by service, between two looks."""
    numbers = ("IN FLIGHT", "HELD", "REQUESTS", "PROMPT TOKENS", "COMPLETION TOKENS")
    table = _table("SERVICE", "DEPTH", *numbers, "MEMORY", right=frozenset(numbers))
    for service in services:
        old, new = _sums(before, service["name"]), _sums(now, service["name"])
        rates = [rate(max(0, b - a) / seconds) for a, b in zip(old, new, strict=True)]
        table.add_row(
            service["name"],
            _styled_depth(service),
            str(service["in_flight"]),
            str(service["held"]),
            *rates,
            memory_text(None, service),
        )
    return table


def _sums(found: Sequence[Usage], service: str) -> tuple[int, int, int]:
    mine = [each for each in found if each.service == service]
    return (
        sum(each.requests for each in mine),
        sum(each.prompt_tokens for each in mine),
        sum(each.completion_tokens for each in mine),
    )


def findings(found: Sequence[Finding]) -> Table:
    """One line per check, the advice below it."""
    table = _table("STATE", "CHECK", "WHAT")
    for finding in found:
        style = _LEVEL_STYLES[finding.level]
        advice = f"\n[dim]{escape(finding.advice)}[/dim]" if finding.advice else ""
        table.add_row(
            f"[{style}]{finding.level.name}[/{style}]", escape(finding.check), escape(finding.text) + advice
        )
    return table


def models(found: Sequence[Model]) -> Table:
    """One line per model folder; `?`: who serves it is not known."""
    table = _table("MODEL", "SIZE", "VERDICT", "SERVED BY", "FOLDER")
    for model in found:
        served = "?" if model.services is None else ", ".join(model.services) or "-"
        table.add_row(
            escape(model.name), size(model.size_bytes), model.verdict or "-", served, escape(model.path)
        )
    return table


_VERDICTS = {
    "failed": "the files are wrong",
    "structure_only": "the structure is whole; values of this format are not judged",
    "unverified": "the files could not be judged",
    "values_only": "every value is finite; nobody recorded a hash to compare all files with",
    "verified": "every file has the hash that the hub recorded, and every value is finite",
}


def verdicts_explained(found: Sequence[Model]) -> list[str]:
    """What each verdict in the table means, in the order of their names."""
    shown = sorted({model.verdict for model in found if model.verdict in _VERDICTS})
    return [f"{verdict}: {_VERDICTS[verdict]}." for verdict in shown]


def event(fields: Json) -> str:
    """One event as a line: when (UTC), about which service, and what it says."""
    said = fields.get("sentence") or fields["event"]  # a router of an earlier release has no sentences
    return f"{str(fields['time'])[:19]}Z  {fields.get('service') or '':<12} {said}"
