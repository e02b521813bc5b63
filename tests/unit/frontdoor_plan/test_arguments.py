"""What the image's own parser says, and what the table knows before there is an image."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from frontdoor_plan import check_answer, check_router_answer, commands
from frontdoor_plan.flag_table import flags_of
from plan_support import ENGINE_IMAGES, REPOSITORY, box, planned, refusals, variables, with_service

BOX = box("three_gpus")
RAW = variables("gpu_boxes")
GOOD: dict[str, Any] = {"version": "0.27.1", "sleep_mode": True, "problems": {}}
MODULE = REPOSITORY / "roles" / "vllm_service" / "library" / "vllm_service_ask_image.py"
_SPEC = importlib.util.spec_from_file_location("vllm_service_ask_image", MODULE)
assert _SPEC is not None
assert _SPEC.loader is not None
module = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(module)


def test_each_service_asks_with_the_arguments_that_its_engine_gets() -> None:
    plan = planned(with_service(RAW, "ocr", extra_args=["--seed", "1"]), BOX)
    asked = commands(plan)
    assert sorted(asked) == ["embed", "ocr", "text"]
    assert asked["ocr"][-2:] == ["--seed", "1"]
    assert "--enable-sleep-mode" in asked["text"]
    assert check_answer(plan, GOOD) == []


def test_the_images_own_words_are_the_reason() -> None:
    plan = planned(RAW, BOX)
    (refusal,) = check_answer(plan, GOOD | {"problems": {"text": "invalid tool call parser: x"}})
    assert refusal.where == "vllm_service_services.text"
    assert "invalid tool call parser: x" in refusal.why


def test_an_image_without_sleep_mode_is_one_refusal() -> None:
    words = dict.fromkeys(("text", "ocr", "embed"), "unrecognized arguments: --enable-sleep-mode")
    found = check_answer(planned(RAW, BOX), GOOD | {"sleep_mode": False, "problems": words})
    assert [refusal.what for refusal in found] == [
        f"The image {ENGINE_IMAGES['gpu_boxes']} has no sleep mode."
    ]


def test_an_image_that_can_not_be_asked_is_refused() -> None:
    (refusal,) = check_answer(planned(RAW, BOX), {"failure": "its parser did not answer within 300 s"})
    assert refusal.where == "vllm_service_image"
    assert "300 s" in refusal.why


def test_a_router_that_would_not_start_is_refused_in_its_own_words() -> None:
    plan = planned(RAW, BOX)
    assert check_router_answer(plan, {"problems": {}}) == []
    (refusal,) = check_router_answer(plan, {"problems": {"router": "ROUTER_TLS_KEY doesn't match."}})
    assert "would not start with its settings" in refusal.what
    assert "ROUTER_TLS_KEY doesn't match." in refusal.why
    (refusal,) = check_router_answer(plan, {"failure": "docker can't be run: No such file"})
    assert "can't be asked" in refusal.what


@pytest.mark.parametrize(
    ("flag", "tag", "known"),
    [
        ("--sleep-mode-offload-cudagraph", "v0.27.1", False),
        ("--sleep-mode-offload-cudagraph", "v0.32.0", True),
        ("--calculate-kv-scales", "v0.27.1", True),
        ("--calculate-kv-scales", "v0.32.0", False),
        ("--no-enable-prefix-caching", "v0.32.0", True),
        ("--max_num_seqs=5", "v0.27.1", True),
        ("--max-num-se", "v0.27.1", True),
        ("--compilation-config.mode", "v0.27.1", True),
        ("--nonsense", "v9.9.9", True),
    ],
)
def test_the_table_knows_each_version(flag: str, tag: str, known: bool) -> None:
    """An image of a version that isn't in the table is left to its own parser."""
    image = f"vllm/vllm-openai:{tag}"
    facts = BOX | {"images": {**BOX["images"], image: BOX["images"][ENGINE_IMAGES["gpu_boxes"]]}}
    raw = with_service(RAW, "ocr", extra_args=[flag]) | {"vllm_service_image": image}
    if known:
        assert planned(raw, facts)
    else:
        (refusal,) = refusals(raw, facts)
        assert refusal.what == f"vLLM {tag[1:]} has no flag {flag}."


@pytest.mark.parametrize("version", ["0.27.1", "0.32.0"])
@pytest.mark.parametrize("group", ["gpu_boxes", "rehearsal"])
def test_everything_that_the_plan_renders_is_in_the_table(version: str, group: str) -> None:
    name = {"gpu_boxes": "three_gpus", "rehearsal": "rehearsal"}[group]
    flags = flags_of(version)
    assert flags is not None
    for command in commands(planned(variables(group), box(name))).values():
        assert {argument for argument in command if argument.startswith("--")} <= flags
    assert flags_of("1.0.0") is None


@pytest.mark.parametrize("output", ["", "no JSON", "[]", '{"problems": 1}', '{"failure": "x"}'])
def test_what_is_no_answer_is_not_taken_for_one(output: str) -> None:
    assert module.parse_answer(output) is None
    assert module.parse_answer(f"a banner\n{json.dumps(GOOD)}\n") == GOOD


def _parameters(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "docker_host": "unix:///x",
        "image": "sha256:a",
        "program": ["-c", "print(1)"],
        "question": {"commands": {"text": ["--model", "m"]}},
        "files": {},
        "cache": str(tmp_path / "arguments"),
        "name": "n",
        "timeout_seconds": 1,
    } | changes


def test_an_answer_is_kept_for_the_very_same_question_only(tmp_path: Path) -> None:
    path = module.cache_path(_parameters(tmp_path))
    assert module.cached(path) is None
    module.keep(path, GOOD)
    assert module.cached(module.cache_path(_parameters(tmp_path))) == GOOD
    changes: list[dict[str, Any]] = [
        {"image": "sha256:b"},
        {"question": {"commands": {"text": []}}},
        {"program": ["-c", "x"]},
        {"files": {"/secrets/tls-key.pem": "another"}},
    ]
    for change in changes:
        assert module.cached(module.cache_path(_parameters(tmp_path, **change))) is None
    path.write_text("{")
    assert module.cached(path) is None


def test_the_container_has_no_network_and_can_not_write() -> None:
    command = module.container_command(_parameters(Path("/c")))
    for option in ("--network", "none", "--read-only", "--cap-drop", "--rm"):
        assert option in command
    assert "--gpus" not in command
