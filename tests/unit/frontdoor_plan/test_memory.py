"""Memory: measured figures and estimates, on GPUs and on the host."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from frontdoor_plan import plan_table
from frontdoor_plan.calibration import Calibration, CalibrationError, json_schema, parse_calibration
from frontdoor_plan.render import render
from plan_support import LAUNCHER, box, planned, refusals, variables, with_service

BOX = box("three_gpus")
RAW = variables("gpu_boxes")
CPU_BOX = box("rehearsal")
CPU_RAW = variables("rehearsal")
GIB = 2**30
FOLDER = "/var/lib/vllm-frontdoor/default/calibration"
OCR = Calibration(
    service="ocr",
    model_folder="/var/lib/vllm-frontdoor/models/OvisOCR2",
    image_id="sha256:" + "a" * 64,
    device_name=BOX["gpus"][2]["name"],
    tensor_parallel=1,
    pipeline_parallel=1,
    awake_bytes_per_device=7 * GIB,
    asleep_bytes_per_device=9 * GIB,
    host_bytes_asleep=6 * GIB,
    measured_at="2026-08-12T09:00:00Z",
)


def _measured(figures: Calibration = OCR, name: str = "ocr", **changes: Any) -> dict[str, Any]:
    return BOX | {"calibration": {f"{FOLDER}/{name}.json": {"document": figures.document() | changes}}}


def _row(table: str, service: str) -> str:
    return next(line for line in table.splitlines() if f" {service} " in line)


def test_the_table_says_what_is_measured_and_what_is_estimated() -> None:
    table = plan_table(planned(RAW, _measured()))
    assert "9.0 GiB measured" in _row(table, "ocr")
    assert "5.0 GiB estimated" in _row(table, "embed")
    assert "ocr 6.0 GiB measured" in table
    assert "0.3625 = 29.0 GiB" in table


def test_a_measured_residue_above_the_fraction_counts_against_the_limit() -> None:
    raw = with_service(RAW, "embed", memory_fraction="0.7676")
    (refusal,) = refusals(raw, _measured())
    assert "0.1125 (ocr, its residue)" in refusal.what
    assert planned(with_service(RAW, "embed", memory_fraction="0.7675"), _measured())


@pytest.mark.parametrize(
    "other",
    [
        {"model_folder": "/elsewhere"},
        {"image_id": "sha256:" + "b" * 64},
        {"device_name": "another GPU"},
        {"tensor_parallel": 2},
        {"pipeline_parallel": 2},
    ],
)
def test_figures_of_another_engine_are_not_used(other: dict[str, Any]) -> None:
    table = plan_table(planned(RAW, _measured(replace(OCR, **other))))
    assert "5.0 GiB estimated" in _row(table, "ocr")


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"problem": "it is not JSON"}, "it is not JSON"),
        ({"document": []}, "not a JSON object"),
        ({"document": OCR.document() | {"asleep_bytes_per_device": -1}}, "asleep_bytes_per_device"),
        ({"document": OCR.document() | {"more": 1}}, "more"),
        ({"document": OCR.document() | {"service": "embed"}}, "speaks of the service embed"),
        ({"document": OCR.document() | {"schema_version": 2}}, "schema version"),
    ],
)
def test_damaged_figures_are_refused_by_their_path(entry: dict[str, Any], part: str) -> None:
    (refusal,) = refusals(RAW, BOX | {"calibration": {f"{FOLDER}/ocr.json": entry}})
    assert part in refusal.what
    assert f"rm {FOLDER}/ocr.json" in refusal.remedy


def test_the_schema_and_the_reader_take_the_same() -> None:
    jsonschema.validate(OCR.document(), json_schema())
    assert parse_calibration(OCR.document()) == OCR
    for wrong in ({"more": 1}, {"tensor_parallel": 0}, {"host_bytes_asleep": 2**60}, {"service": ""},
                  {"awake_bytes_per_device": True}, {"measured_at": 5}):  # fmt: skip
        with pytest.raises(CalibrationError):
            parse_calibration(OCR.document() | wrong)
        if wrong != {"awake_bytes_per_device": True}:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(OCR.document() | wrong, json_schema())


def test_a_fraction_follows_from_the_kv_cache_and_the_weights() -> None:
    raw = with_service(RAW, "ocr", memory_fraction=None, kv_cache_memory_gib=4)
    plan = planned(raw, BOX)
    command = render(plan, LAUNCHER).engines.definition["services"]["ocr"]["command"]
    # (4.2 GB of weights + 4 GiB + 5 GiB) of 80 GiB, rounded up.
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.1614"
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(4 * GIB)


def test_a_derived_fraction_over_the_limit_is_refused_where_it_is_set() -> None:
    (refusal,) = refusals(with_service(RAW, "ocr", memory_fraction=None, kv_cache_memory_gib=60), BOX)
    assert "vllm_service_services.ocr.kv_cache_memory_gib" in refusal.where


def test_the_host_has_to_hold_all_who_sleep() -> None:
    (refusal,) = refusals(RAW, BOX | {"memory_bytes": 100 * GIB})
    assert "The host's memory can't hold all services asleep" in refusal.what
    assert "69.8 (text, estimated)" in refusal.what
    assert planned(RAW, BOX | {"memory_bytes": 118 * GIB})
    assert planned(RAW | {"vllm_service_host_memory_limit": 1}, BOX | {"memory_bytes": 106 * GIB})


def test_on_cpu_devices_the_engines_themselves_have_to_fit() -> None:
    (refusal,) = refusals(CPU_RAW, CPU_BOX | {"memory_bytes": 5 * GIB})
    assert "2.8 (text, estimated)" in refusal.what


def test_weights_that_nobody_could_measure_count_nothing() -> None:
    facts = copy.deepcopy(BOX) | {"models": {}}
    assert "text 0.0 GiB estimated" in plan_table(planned(RAW, facts))
