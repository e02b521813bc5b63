"""What the plan tells people beyond devices and memory."""

from __future__ import annotations

from typing import Any

import pytest
from frontdoor_plan import plan_table
from plan_support import box, planned, variables, with_service

RAW = variables("gpu_boxes")
BOX = box("three_gpus")


def _habits(raw: dict[str, Any], service: str) -> str:
    lines = plan_table(planned(raw, BOX)).splitlines()
    table = lines[next(number for number, line in enumerate(lines) if "idle: sleeps" in line) :]
    row = next(line for line in table if line.startswith(f"  {service} "))
    return " ".join(row.split())


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, "ocr after 5 min after 180 min once proven ovis"),
        ({"idle_sleep_minutes": 0}, "ocr never after 180 min once proven ovis"),
        ({"idle_offload_minutes": 0, "aliases": []}, "ocr after 5 min never once proven"),
        ({"allow_level_2": "never", "aliases": ["a", "b"]}, "ocr after 5 min after 180 min never a, b"),
        ({"pin": True, "allow_level_2": True}, "ocr never, pinned never, pinned always ovis"),
    ],
)
def test_each_service_says_when_it_sleeps(settings: dict[str, Any], row: str) -> None:
    raw = with_service(RAW, "ocr", **settings) | {"router_idle_sleep_minutes": 5}
    assert _habits(raw, "ocr") == row
