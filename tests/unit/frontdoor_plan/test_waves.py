from __future__ import annotations

from frontdoor_plan.waves import waves
from plan_support import box, planned, variables, with_service


def test_engines_that_share_a_gpu_start_one_after_the_other() -> None:
    plan = planned(variables("gpu_boxes"), box("three_gpus"))
    assert plan.waves == (("text", "ocr"), ("embed",))


def test_lower_slots_come_first() -> None:
    plan = planned(with_service(variables("gpu_boxes"), "embed", slot=99), box("three_gpus"))
    assert plan.waves == (("text", "ocr"), ("embed",))
    plan = planned(with_service(variables("gpu_boxes"), "ocr", slot=99), box("three_gpus"))
    assert plan.waves == (("text", "embed"), ("ocr",))


def test_nobody_starts_in_no_wave() -> None:
    assert waves(()) == ()
