"""The engine that runs is the one that was planned, and the plan takes its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontdoor_calibration import engines
from frontdoor_calibration.figures import Measurement, Reading, Round, plan_figures
from frontdoor_plan import plan_table
from frontdoor_plan.calibration import Calibration
from frontdoor_plan.render import render
from plan_support import LAUNCHER, box, planned, variables, with_service

RECORDED = Path(__file__).parents[1] / "converge/recorded/container-engine-20.10.24-compose-5.6.1.json"
GIB = 2**30


def container(
    group: str, name: str, facts: dict[str, Any], raw: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What Docker would say of a service's container, in the form that was recorded of a real one."""
    recorded = json.loads(RECORDED.read_text())
    document: dict[str, Any] = recorded[0] if isinstance(recorded, list) else recorded
    rendering = render(planned(raw or variables(group), facts), LAUNCHER)
    definition = rendering.engines.definition["services"][name]
    environment = rendering.files[f"engines/{name}.env"].decode().splitlines()
    mounts = [
        {"Type": "bind", "Source": each["source"], "Destination": each["target"]}
        for each in definition["volumes"]
    ]
    config = {
        "Cmd": definition["command"],
        "Env": [line.replace("'", "") for line in environment if "=" in line],
        "Labels": definition["labels"],
    }
    return document | {"Mounts": mounts, "Image": definition["image"], "Config": document["Config"] | config}


def test_a_gpus_engine_is_what_the_plan_compares_with() -> None:
    facts = box("three_gpus")
    engine = engines.engine_of(container("gpu_boxes", "ocr", facts))
    gpus = {gpu["uuid"]: gpu["name"] for gpu in facts["gpus"]}
    measured = Measurement(
        "ocr", "m", "2026-08-12T09:00:00Z", engine.on_cpu,
        (Round({}, {"awake": Reading(3 * GIB, 99 * GIB, dict.fromkeys(engine.devices, 20 * GIB)),
                    "sleeping": Reading(8 * GIB, 94 * GIB, dict.fromkeys(engine.devices, 3 * GIB))}),),
        "", "",
    )  # fmt: skip
    document = Calibration(
        service="ocr",
        model_folder=engine.model_folder,
        image_id=engine.image_id,
        device_name=engines.device_name(engine, gpus),
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        measured_at=measured.measured_at,
        **plan_figures(measured),
    ).document()
    path = "/var/lib/vllm-frontdoor/default/calibration/ocr.json"
    table = plan_table(
        planned(variables("gpu_boxes"), facts | {"calibration": {path: {"document": document}}})
    )
    assert "3.0 GiB measured" in table
    assert "ocr 8.0 GiB measured" in table


def test_a_split_engine_has_its_parts() -> None:
    document = container("gpu_boxes", "text", box("three_gpus"))
    document["Config"]["Cmd"] += ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "3"]
    document["Config"]["Labels"][engines.LABEL_DEVICES] = "GPU-1,GPU-2"
    engine = engines.engine_of(document)
    assert (engine.tensor_parallel, engine.pipeline_parallel) == (2, 3)
    assert engine.devices == ("GPU-1", "GPU-2")
    assert not engine.on_cpu


def test_a_cpus_engine_has_its_cache() -> None:
    raw = with_service(variables("rehearsal"), "text", kv_cache_memory_gib=2)
    engine = engines.engine_of(container("rehearsal", "text", box("rehearsal"), raw))
    assert engine.on_cpu
    assert engine.kv_cache_bytes == 2 * GIB
    assert engines.device_name(engine, {}) == "cpu"
    assert engine.pid > 0


def test_what_cannot_be_measured_is_said() -> None:
    document = container("rehearsal", "text", box("rehearsal"))
    with pytest.raises(engines.UnknownEngineError, match="text is not running"):
        engines.engine_of(document | {"State": {"Pid": 0}})
    with pytest.raises(engines.UnknownEngineError, match="another version"):
        engines.engine_of(document | {"Mounts": []})


def test_gpus_of_several_kinds_are_told_before_anything_is_driven() -> None:
    engine = engines.Engine("text", 1, "/m", "sha256:1", ("GPU-1", "GPU-2"))
    with pytest.raises(engines.UnknownEngineError, match="A100, H100"):
        engines.device_name(engine, {"GPU-1": "H100", "GPU-2": "A100"})
    with pytest.raises(engines.UnknownEngineError, match="doesn't list the devices GPU-2"):
        engines.device_name(engine, {"GPU-1": "H100"})
    assert engines.device_name(engine, {"GPU-1": "H100", "GPU-2": "H100"}) == "H100"
