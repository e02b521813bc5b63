"""Which events of the router make GPUs suspect."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from gpu_diag.engine_events import from_router_event, kind_of, suspicions
from gpu_diag.hostfacts.gpu_diag_router import Json, Service, parse_stream

MOMENT = datetime(2026, 8, 8, 10, 0, tzinfo=UTC)
EVENT: Json = {
    "time": "2026-08-08T10:00:00.000+00:00",
    "event": "depth",
    "service": "text",
    "depth": "offloaded",
    "conditions": ["quarantined"],
    "reason": "the engine counts 3 answers with NaN (vllm:corrupted_requests)",
}


def test_an_event_of_quarantine_names_service_kind_and_moment() -> None:
    assert from_router_event(EVENT) == ("text", "nan", MOMENT)
    canary = {**EVENT, "conditions": ["failed"], "reason": "the canary's answer is nothing but '!'"}
    assert from_router_event(canary) == ("text", "canary", MOMENT)


@pytest.mark.parametrize(
    "change",
    [
        {"event": "transition"},
        {"conditions": []},
        {"conditions": ["draining"]},
        {"conditions": None},
        {"reason": "/is_sleeping has not been answered for 60 s"},
    ],
)
def test_other_events_make_nothing_suspect(change: Json) -> None:
    assert from_router_event({**EVENT, **change}) is None


def test_an_event_without_a_time_is_of_now() -> None:
    told = from_router_event({**EVENT, "time": "nonsense"})
    assert told is not None
    assert abs((told[2] - datetime.now(UTC)).total_seconds()) < 60


def test_all_gpus_of_the_service_are_suspect_and_the_processor_never_is() -> None:
    service = Service("text", "offloaded", ("GPU-a", "GPU-b", "cpu:left", "GPU-of-another-box"))
    slots = {"GPU-a": "0000:3d:00.0", "GPU-b": "0000:63:00.0", "GPU-c": "0000:ab:00.0"}
    found = suspicions(service, "nan", MOMENT, slots)
    assert [(one.rule, one.pci_address) for one in found] == [
        ("engine_nan", "0000:3d:00.0"),
        ("engine_nan", "0000:63:00.0"),
    ]
    assert len({one.key for one in found}) == 2


def test_a_reason_alone_is_no_distrust() -> None:
    assert kind_of([], "NaN") is None


def test_a_stream_of_events_with_comments_and_broken_lines() -> None:
    lines = [": listening", "", "event: depth", 'data: {"event": "depth"}', "data: {broken", "data: 7"]
    assert list(parse_stream(lines)) == [{"event": "depth"}]
