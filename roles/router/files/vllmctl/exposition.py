"""What Prometheus' text format says, as far as the router writes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One number with its labels."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """Every sample of an exposition; lines of another form are left out."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found:
            name, labels, value = found.groups()
            yield Sample(
                name, {key: _plain(text) for key, text in _LABEL.findall(labels or "")}, float(value)
            )


def _plain(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def total(found: Iterable[Sample], name: str, **labels: str) -> float:
    """The sum of a metric over the series that carry these labels."""
    return sum(
        sample.value
        for sample in found
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
    )


@dataclass(frozen=True)
class Usage:
    """What was answered for one service and one key (empty: nobody needs one) since the router started."""

    service: str
    key: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int


def usage(text: str) -> list[Usage]:
    """Usage by service and key, in order."""
    found = list(samples(text))
    pairs = {
        (sample.labels["service"], sample.labels["key"])
        for sample in found
        if sample.name == "frontdoor_requests_total" and sample.labels.get("service")
    }
    return [_usage(found, service, key) for service, key in sorted(pairs)]


def _usage(found: list[Sample], service: str, key: str) -> Usage:
    labels = {"service": service, "key": key}
    failed = sum(
        sample.value
        for sample in found
        if sample.name == "frontdoor_requests_total"
        and (sample.labels["service"], sample.labels["key"]) == (service, key)
        and not sample.labels["status"].startswith(("1", "2"))
    )
    tokens = "frontdoor_tokens_total"
    return Usage(
        service,
        key,
        requests=int(total(found, "frontdoor_requests_total", **labels)),
        failed=int(failed),
        prompt_tokens=int(total(found, tokens, **labels, kind="prompt")),
        completion_tokens=int(total(found, tokens, **labels, kind="completion")),
    )
