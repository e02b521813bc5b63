"""What is made of measurements and of the plan's figures, without any process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wake_router.admin_contract import DeviceMemory
from wake_router.device_memory import (
    LEAST_GAP_SECONDS,
    TOLERANCE,
    Measurement,
    MeasurementError,
    Member,
    Used,
    device_memory,
    is_due,
    is_over,
    parse_measurement,
    planned,
    service_memory,
    stale_seconds,
)
from wake_router.lifecycle import Depth
from wake_router.memory_plan import (
    NO_PLAN,
    MemoryPlan,
    MemoryPlanError,
    PlannedDevice,
    PlannedShare,
    parse_memory_plan,
    schema,
)

GIB = 2**30
GPU, CPU = "GPU-1", "cpu:left"
NOW, FRESH = 1000.0, 60.0
ANSWER: dict[str, Any] = {
    "schema_version": 1,
    "service": "text",
    "age_seconds": 2.5,
    "resident_bytes": 7,
    "devices": {GPU: {"used_bytes": 5, "total_bytes": 80}},
    "problems": [],
}


def share(service: str, device: str = GPU, awake: int = 30, asleep: int = 5) -> PlannedShare:
    return PlannedShare(
        service=service,
        device=device,
        awake_bytes=awake * GIB,
        asleep_bytes=asleep * GIB,
        measured=False,
    )


def plan(*shares: PlannedShare, kind: str = "cuda") -> MemoryPlan:
    devices = [
        PlannedDevice.model_validate(
            {
                "device": key,
                "name": f"the {key}",
                "kind": kind,
                "total_bytes": 80 * GIB,
                "limit_bytes": 70 * GIB,
            }
        )
        for key in dict.fromkeys(each.device for each in shares)
    ]
    return MemoryPlan(schema_version=1, devices=tuple(devices), shares=shares)


def on_gpu(service: str, used: int | None, depth: Depth = Depth.AWAKE, at: float = NOW - 1) -> Member:
    gpus = {} if used is None else {GPU: Used(used * GIB, 80 * GIB)}
    return Member(service, (GPU,), depth, NOW - 100, Measurement(at, GIB, gpus))


def on_cpu(service: str, resident: int | None, depth: Depth = Depth.AWAKE, at: float = NOW - 1) -> Member:
    return Member(
        service,
        (CPU,),
        depth,
        NOW - 100,
        Measurement(at, None if resident is None else resident * GIB),
    )


def seen(figures: MemoryPlan, *members: Member) -> DeviceMemory:
    (found,) = device_memory(figures, members, NOW, FRESH)
    return found


# ---- what a launcher answers


def test_a_measurement_is_as_old_as_it_says() -> None:
    measured = parse_measurement(ANSWER, NOW)
    assert (measured.at, measured.resident, measured.gpus) == (NOW - 2.5, 7, {GPU: Used(5, 80)})


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"resident_bytes": -1},
        {"resident_bytes": "7"},
        {"resident_bytes": True},
        {"resident_bytes": 2**61},
        {"age_seconds": None},
        {"age_seconds": -1.0},
        {"age_seconds": float("inf")},
        {"age_seconds": float("nan")},
        {"devices": []},
        {"devices": {GPU: 7}},
        {"devices": {GPU: {"used_bytes": 1}}},
        {"problems": None},
    ],
)
def test_an_answer_of_another_form_is_no_measurement(changes: dict[str, Any]) -> None:
    with pytest.raises(MeasurementError):
        parse_measurement(ANSWER | changes, NOW)


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*ANSWER, "x"]), inner),
    )
)
def test_whatever_an_engine_answers_is_a_measurement_or_a_sentence(document: Any) -> None:
    try:
        parse_measurement(document, NOW)
    except MeasurementError as error:
        assert str(error)


# ---- when to measure


def test_it_is_time_after_the_interval_or_another_depth() -> None:
    rested = Member("text", (GPU,), Depth.SLEEPING, since=NOW - 500, measured=Measurement(NOW - 10))
    assert is_due(None, rested, NOW, 30)
    assert not is_due(NOW - 10, rested, NOW, 30)
    assert is_due(NOW - 30, rested, NOW, 30)
    fell_asleep = Member("text", (GPU,), Depth.SLEEPING, since=NOW - 1, measured=Measurement(NOW - 10))
    assert is_due(NOW - 10, fell_asleep, NOW, 30), "what was measured awake says nothing now"
    assert not is_due(NOW - LEAST_GAP_SECONDS / 2, fell_asleep, NOW, 30)


def test_a_launcher_that_can_not_measure_is_not_asked_all_the_time() -> None:
    never = Member("text", (GPU,), Depth.AWAKE, since=NOW - 100, failure="Nobody answers.")
    assert not is_due(NOW - 5, never, NOW, 30)
    assert is_due(NOW - 30, never, NOW, 30)


def test_0_is_never() -> None:
    assert not is_due(None, Member("text", (GPU,), Depth.AWAKE, since=0), NOW, 0)


# ---- what is allowed


@pytest.mark.parametrize("depth", list(Depth))
def test_the_plan_allows_by_the_depth(depth: Depth) -> None:
    wanted = {Depth.STOPPED: 0, Depth.SLEEPING: 5 * GIB, Depth.OFFLOADED: 5 * GIB}.get(depth, 30 * GIB)
    assert planned(share("text"), depth) == wanted


def test_a_little_more_than_planned_is_nothing() -> None:
    total = 100 * GIB
    assert not is_over(int(10 * GIB + TOLERANCE * total), 10 * GIB, total)
    assert is_over(int(10 * GIB + TOLERANCE * total) + GIB, 10 * GIB, total)


# ---- a GPU


def test_a_gpus_services_are_compared_with_what_is_used_of_it() -> None:
    figures = plan(share("text"), share("ocr"))
    found = seen(figures, on_gpu("text", 30, at=NOW - 9), on_gpu("ocr", 36, Depth.SLEEPING, at=NOW - 3))
    assert (found.planned_bytes, found.used_bytes, found.age_seconds) == (35 * GIB, 36 * GIB, 3.0)
    assert (found.limit_bytes, found.total_bytes, found.over_plan) == (70 * GIB, 80 * GIB, False)
    assert [each.resident_bytes for each in found.shares] == [None, None], "the host's memory is no GPU's"
    assert seen(figures, on_gpu("text", 40), on_gpu("ocr", 40, Depth.SLEEPING)).over_plan is True


def test_an_old_measurement_is_none() -> None:
    found = seen(plan(share("text")), on_gpu("text", 70, at=NOW - FRESH - 1))
    assert (found.used_bytes, found.age_seconds, found.over_plan) == (None, None, None)


def test_what_was_measured_at_another_depth_is_shown_and_not_judged() -> None:
    asleep = Member(
        "text", (GPU,), Depth.SLEEPING, NOW - 1, Measurement(NOW - 5, 0, {GPU: Used(30 * GIB, 1)})
    )
    found = seen(plan(share("text")), asleep)
    assert (found.used_bytes, found.planned_bytes, found.over_plan) == (30 * GIB, 5 * GIB, None)


def test_why_a_gpu_is_unknown_is_told_once() -> None:
    members = [
        Member(name, (GPU,), Depth.AWAKE, 0, Measurement(NOW, 1, {}, ("nvidia-smi hangs",)))
        for name in ("text", "ocr")
    ]
    assert seen(plan(share("text"), share("ocr")), *members).problems == ["nvidia-smi hangs"]
    failed = Member("text", (GPU,), Depth.AWAKE, 0, None, "Nobody answers.")
    assert seen(plan(share("text")), failed).problems == ["Nobody answers."]


def test_a_service_that_the_plan_does_not_know_leaves_the_sum_open() -> None:
    found = seen(plan(share("text")), on_gpu("text", 30), on_gpu("new", 30))
    assert (found.planned_bytes, found.over_plan) == (None, None)


def test_without_the_plans_figures_what_is_measured_is_shown() -> None:
    found = seen(NO_PLAN, on_gpu("text", 30))
    assert (found.name, found.kind, found.used_bytes, found.total_bytes) == (GPU, "cuda", 30 * GIB, 80 * GIB)
    assert (found.limit_bytes, found.planned_bytes, found.over_plan) == (None, None, None)


def test_a_device_that_nobody_uses_is_there() -> None:
    found = seen(plan(share("gone")))
    assert (found.planned_bytes, found.used_bytes, found.shares) == (0, None, [])


# ---- a CPU device


def test_on_the_cpu_the_engines_resident_memory_is_added_up() -> None:
    figures = plan(share("text", CPU), share("ocr", CPU), kind="cpu")
    found = seen(figures, on_cpu("text", 20, at=NOW - 9), on_cpu("ocr", 7, at=NOW - 3))
    assert (found.kind, found.used_bytes, found.age_seconds) == ("cpu", 27 * GIB, 9.0)
    assert [each.resident_bytes for each in found.shares] == [20 * GIB, 7 * GIB]


def test_one_engine_that_is_not_measured_leaves_the_sum_open() -> None:
    figures = plan(share("text", CPU), share("ocr", CPU), kind="cpu")
    for missing in (on_cpu("ocr", None), on_cpu("ocr", 7, at=NOW - FRESH - 1)):
        assert seen(figures, on_cpu("text", 20), missing).used_bytes is None
    stopped = Member("ocr", (CPU,), Depth.STOPPED, NOW - 100, None, "Nobody answers.")
    found = seen(figures, on_cpu("text", 20), stopped)
    assert (found.used_bytes, found.planned_bytes) == (20 * GIB, 30 * GIB)
    ended = Member("ocr", (CPU,), Depth.STOPPED, NOW - 2, Measurement(NOW - 5, 7 * GIB))
    assert seen(figures, on_cpu("text", 20), ended).used_bytes == 20 * GIB, "what it held before it ended"
    lingers = Member("ocr", (CPU,), Depth.STOPPED, NOW - 5, Measurement(NOW - 2, 7 * GIB))
    assert seen(figures, on_cpu("text", 20), lingers).used_bytes == 27 * GIB, "it answers nobody and is there"


def test_an_engine_on_two_cpu_devices_is_on_each_with_its_part() -> None:
    member = Member("text", (CPU, "cpu:right"), Depth.AWAKE, 0, Measurement(NOW, 20 * GIB))
    figures = plan(share("text", CPU, 15), share("text", "cpu:right", 15), kind="cpu")
    assert [each.used_bytes for each in device_memory(figures, [member], NOW, FRESH)] == [10 * GIB] * 2


# ---- one service


def test_a_gpu_is_a_services_own_where_it_is_alone() -> None:
    text, ocr = on_gpu("text", 30), on_gpu("ocr", 30)
    alone = service_memory(text, [text], NOW)
    assert alone is not None and (alone.device_bytes, alone.resident_bytes) == (30 * GIB, GIB)
    together = service_memory(text, [text, ocr], NOW)
    assert together is not None and together.device_bytes is None


def test_what_was_never_tried_is_nothing_and_what_failed_says_why() -> None:
    never = Member("text", (GPU,), Depth.AWAKE, 0)
    assert service_memory(never, [never], NOW) is None
    failed = Member("text", (GPU,), Depth.AWAKE, 0, None, "Nobody answers.")
    told = service_memory(failed, [failed], NOW)
    assert told is not None
    assert (told.resident_bytes, told.age_seconds, told.problems) == (None, None, ["Nobody answers."])


def test_a_measurement_counts_for_some_intervals() -> None:
    assert stale_seconds(30) == 120
    assert stale_seconds(0.1) == 4 * LEAST_GAP_SECONDS


# ---- the plan's figures


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "the document: "),
        (b'{"schema_version": 2, "devices": [], "shares": []}', "schema_version: "),
        (b'{"schema_version": 1, "devices": [{"device": ""}], "shares": []}', r"devices\.0\.device: "),
    ],
)
def test_figures_of_another_form_are_refused_with_a_place(content: bytes, sentence: str) -> None:
    with pytest.raises(MemoryPlanError, match=sentence):
        parse_memory_plan(content)


def test_the_schema_names_what_is_read() -> None:
    assert set(schema()["properties"]) == {"schema_version", "devices", "shares"}
