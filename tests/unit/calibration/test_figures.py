"""Statistics, the figures that the plan reads, and the documents on the disk."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from frontdoor_calibration import figures
from frontdoor_calibration.figures import Measurement, Reading, Round
from frontdoor_plan.calibration import LARGEST_BYTES
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30
SIZES = st.integers(1, 2**45)
SECONDS = st.floats(0, 1e6, allow_nan=False)
UUIDS = ("GPU-1", "GPU-2")


def readings(on_cpu: bool) -> st.SearchStrategy[Reading]:
    devices = st.just({}) if on_cpu else st.fixed_dictionaries(dict.fromkeys(UUIDS, SIZES))
    return st.builds(Reading, host=SIZES, available=st.integers(0, 2**45), devices=devices)


def rounds(on_cpu: bool) -> st.SearchStrategy[Round]:
    """Rounds as they are driven: level 2 and the start may be absent."""
    always = {depth: readings(on_cpu) for depth in ("awake", "sleeping")}
    return st.builds(
        Round,
        seconds=st.dictionaries(st.sampled_from(figures.STEPS), SECONDS),
        memory=st.fixed_dictionaries(always, optional={"offloaded": readings(on_cpu)}),
    )


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    on_cpu = draw(st.booleans())
    return Measurement(
        service=draw(st.sampled_from(("text", "embed"))),
        model="M | m",
        measured_at="2026-08-12T09:00:00Z",
        on_cpu=on_cpu,
        rounds=tuple(draw(st.lists(rounds(on_cpu), min_size=1, max_size=5))),
        level_2="proven by 3 round trips",
        canary="matched",
        kv_cache_bytes=draw(st.integers(0, 2**40)) if on_cpu else 0,
        notes=tuple(draw(st.lists(st.text(max_size=30), max_size=2))),
    )


@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_a_median_lies_between_the_extremes(values: list[float]) -> None:
    found = figures.spread(values)
    assert found is not None
    assert found.least == min(values) <= found.median <= max(values) == found.largest
    assert found.count == len(values)


def test_nothing_has_no_spread() -> None:
    assert figures.spread([]) is None


@given(measurements())
def test_a_document_holds_all_of_a_measurement(measured: Measurement) -> None:
    written = json.dumps(figures.to_document(measured))
    assert figures.from_document(json.loads(written)) == measured


@given(measurements())
def test_the_plans_figures_are_never_below_what_was_seen(measured: Measurement) -> None:
    found = figures.plan_figures(measured)
    asleep = [each.memory["sleeping"] for each in measured.rounds]
    assert found["host_bytes_asleep"] >= max(reading.host for reading in asleep)
    assert all(0 <= value <= LARGEST_BYTES for value in found.values())
    if measured.on_cpu:
        assert found["awake_bytes_per_device"] == found["asleep_bytes_per_device"] == 0
        seen = [reading.host for each in measured.rounds for reading in each.memory.values()]
        assert found["host_bytes_asleep"] == max(seen) + measured.kv_cache_bytes
    else:
        assert found["asleep_bytes_per_device"] == max(max(one.devices.values()) for one in asleep)


@given(measurements(), SIZES)
def test_another_round_never_makes_device_figures_smaller(measured: Measurement, more: int) -> None:
    before = figures.plan_figures(measured)
    last = measured.rounds[-1]
    devices = {} if measured.on_cpu else dict.fromkeys(UUIDS, more)
    fuller = Round(last.seconds, {depth: Reading(more, 0, devices) for depth in last.memory})
    after = figures.plan_figures(replace(measured, rounds=(*measured.rounds, fuller)))
    for key in ("awake_bytes_per_device", "asleep_bytes_per_device"):
        assert after[key] >= before[key]


def gpu(*pairs: tuple[Reading, Reading]) -> Measurement:
    taken = tuple(Round({}, {"awake": awake, "sleeping": asleep}) for awake, asleep in pairs)
    return Measurement("text", "m", "2026-08-12T09:00:00Z", False, taken, "", "")


def test_pinned_memory_that_proc_does_not_show_is_seen_on_the_host() -> None:
    """The processes hold 3 GiB as before; the host has lost 20 GiB meanwhile."""
    awake = Reading(3 * GIB, 100 * GIB, {"GPU-1": 40 * GIB})
    asleep = Reading(3 * GIB, 80 * GIB, {"GPU-1": 2 * GIB})
    found = figures.plan_figures(gpu((awake, asleep)))
    assert found == {
        "awake_bytes_per_device": 40 * GIB,
        "asleep_bytes_per_device": 2 * GIB,
        "host_bytes_asleep": 23 * GIB,
    }


def test_one_round_in_which_others_took_memory_does_not_count_for_all() -> None:
    device = {"GPU-1": GIB}
    quiet = (Reading(3 * GIB, 100 * GIB, device), Reading(22 * GIB, 81 * GIB, device))
    noisy = (Reading(3 * GIB, 100 * GIB, device), Reading(22 * GIB, 10 * GIB, device))
    assert figures.plan_figures(gpu(quiet, noisy, quiet))["host_bytes_asleep"] == 22 * GIB


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"schema_version": 2}, {"schema_version": 1}, {"schema_version": 1, "rounds": [{}]}],
)
def test_a_damaged_document_is_no_measurement(document: object) -> None:
    with pytest.raises(figures.MeasurementError):
        figures.from_document(document)


def test_a_number_that_is_none_is_no_measurement() -> None:
    document = figures.to_document(gpu((Reading(1, 1, {"GPU-1": 1}), Reading(1, 1, {"GPU-1": 1}))))
    document["rounds"][0]["memory"]["awake"]["host"] = "much"
    with pytest.raises(figures.MeasurementError):
        figures.from_document(document)
