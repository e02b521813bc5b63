"""Evidence about devices: what lets a service through, and each refusal by its reason."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from evidence_support import EARLIER, NOW, control, integrity, p2p, with_evidence
from frontdoor_plan import (
    Refusal,
    discovered_from_box,
    evidence_from_box,
    plan_table,
    predict,
    taken_for_granted,
)
from frontdoor_plan.evidence import differences
from frontdoor_plan.planning import plan_declaration
from frontdoor_plan.render import render
from gpu_diag.hostfacts.gpu_diag_evidence_files import documents
from gpu_diag.identity import differences as differences_of_the_probes
from gpu_diag.identity import identity_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import LAUNCHER, box, declared, outcome, planned, refusals, variables, with_service

BOX = box("three_gpus")
RAW = variables("gpu_boxes")
SPLIT = with_service(RAW, "text", devices=["gpu0", "gpu1"], tensor_parallel=2)
CPU_BOX = box("rehearsal")
CPU_RAW = variables("rehearsal")
CPU_SPLIT = CPU_RAW | {
    "vllm_service_services": {
        "even": {"slot": 1, "model": "even", "path": "all-MiniLM-L6-v2", "devices": ["left", "right"],
                 "tensor_parallel": 2}
    }
}  # fmt: skip
OTHER_BOOT = "00000000-0000-4000-8000-00000000000f"
TESTED = with_evidence(BOX, p2p=[p2p(BOX)])


def _only(raw: dict[str, Any], facts: dict[str, Any]) -> Refusal:
    (refusal,) = refusals(raw, facts)
    return refusal


# ------------------------------------------------------------------------------------------- integrity


def test_without_an_integrity_test_nothing_is_planned() -> None:
    refusal = _only(RAW, with_evidence(BOX, integrity=[]))
    assert refusal.what == "There is no evidence of the integrity test of gpu0, gpu2."
    assert "./box diagnose -i INVENTORY --tags integrity" in refusal.remedy


def test_a_cpu_device_is_tested_as_well() -> None:
    assert "integrity test of left, right" in _only(CPU_RAW, with_evidence(CPU_BOX, integrity=[])).what


@pytest.mark.parametrize(
    ("identity", "what", "why"),
    [
        ({"boot_id": OTHER_BOOT}, "is from another boot", "booted again"),
        (
            {"driver": {"version": "1.0", "cuda": "1.0"}},
            "is of another state of the machine",
            "the GPU driver",
        ),
        ({"kernel_command_line": "iommu=pt"}, "is of another state of the machine", "kernel command line"),
        ({"bios_version": "old"}, "is of another state of the machine", "BIOS"),
        ({"acs_redirect": {"0000:3c:00.0": 29}}, "is of another state of the machine", "ACS"),
    ],
)
def test_stale_evidence_is_refused_with_what_changed(identity: dict[str, Any], what: str, why: str) -> None:
    refusal = _only(RAW, with_evidence(BOX, integrity=[integrity(BOX, **identity)]))
    assert what in refusal.what
    assert why in refusal.why


def test_another_board_in_the_slot_is_named() -> None:
    swapped = copy.deepcopy(BOX)
    swapped["gpus"][0]["uuid"] = "GPU-ffffffff-0000-4000-8000-000000000000"
    refusal = _only(RAW, with_evidence(swapped, integrity=[integrity(BOX)]))
    assert "is of other boards" in refusal.what
    assert (
        f"another board is at {BOX['gpus'][0]['pci_address']}: {BOX['gpus'][0]['uuid']} then" in refusal.why
    )


def test_another_boot_and_another_board_are_two_refusals() -> None:
    swapped = copy.deepcopy(BOX)
    swapped["gpus"][2]["uuid"] = "GPU-ffffffff-0000-4000-8000-000000000000"
    found = refusals(RAW, with_evidence(swapped, integrity=[integrity(BOX, boot_id=OTHER_BOOT)]))
    assert len(found) == 2


def _mark(address: str, at: str, boot_id: str = BOX["boot_id"]) -> dict[str, Any]:
    return {"schema_version": 1, "boot_id": boot_id, "at": at, "rule": "xid_48", "pci_address": address,
            "sentence": "Xid 48: memory."}  # fmt: skip


def test_suspect_evidence_is_refused_with_what_happened() -> None:
    address = BOX["gpus"][2]["pci_address"]
    refusal = _only(RAW, BOX | {"suspicions": [_mark(address, "2026-08-12T10:00:00Z")]})
    assert "is suspect" in refusal.what
    assert "Xid 48" in refusal.why


@pytest.mark.parametrize(
    "mark",
    [
        _mark(BOX["gpus"][2]["pci_address"], "2026-08-01T10:00:00Z"),
        _mark(BOX["gpus"][2]["pci_address"], "2026-08-12T10:00:00Z", OTHER_BOOT),
        _mark(BOX["gpus"][1]["pci_address"], "2026-08-12T10:00:00Z"),
    ],
    ids=["before the test", "of another boot", "of a GPU that nobody uses"],
)
def test_marks_that_do_not_concern_a_service_refuse_nothing(mark: dict[str, Any]) -> None:
    assert planned(RAW, BOX | {"suspicions": [mark]})


@pytest.mark.parametrize("verdict", ["corrupt", "hang", "inconclusive"])
def test_a_device_that_is_not_clean_is_refused_for_those_who_use_it(verdict: str) -> None:
    refusal = _only(RAW, with_evidence(BOX, integrity=[integrity(BOX, {0: verdict})]))
    assert refusal.where == "vllm_service_services.text.devices"
    assert f"says that gpu0 is {verdict}" in refusal.what


def test_a_bad_gpu_that_nobody_uses_refuses_nothing() -> None:
    assert planned(RAW, with_evidence(BOX, integrity=[integrity(BOX, {1: "corrupt"})]))


def test_a_device_that_was_not_tested_is_named() -> None:
    document = integrity(BOX)
    del document["details"]["devices"][2]
    assert "says nothing of gpu2" in _only(RAW, with_evidence(BOX, integrity=[document])).what


def test_a_truncated_file_of_evidence_is_refused_by_its_path(tmp_path: Path) -> None:
    """As the box's facts tell of it; the older evidence doesn't speak for it."""
    (tmp_path / "integrity").mkdir()
    whole = json.dumps(integrity(BOX, at=EARLIER))
    (tmp_path / "integrity" / "20260810T093000.000000Z-00000001.json").write_text(whole)
    (tmp_path / "integrity" / "20260812T093000.000000Z-00000002.json").write_text(whole[: len(whole) // 2])
    problems: list[str] = []
    found = documents(str(tmp_path), "integrity", problems)
    refusal = _only(RAW, with_evidence(BOX, integrity=found) | {"problems": problems})
    assert "can't be read" in refusal.what
    assert f"rm {tmp_path}/integrity/20260812T093000.000000Z-00000002.json" in refusal.remedy


def test_a_truncated_file_that_is_older_than_the_evidence_refuses_nothing() -> None:
    problem = (
        "the evidence /e/integrity/20260101T000000.000000Z-00000001.json is not JSON and was left out: x"
    )
    assert planned(RAW, BOX | {"problems": [problem]})


# ----------------------------------------------------------------------------------------- split models


def test_a_split_model_is_planned_on_tested_paths() -> None:
    plan = planned(SPLIT, TESTED)
    text = next(each for each in plan.placements if each.service.name == "text")
    assert text.path == "staged"
    command = render(plan, LAUNCHER).engines.definition["services"]["text"]["command"]
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert "--disable-custom-all-reduce" in command


def test_a_corrupt_pair_leaves_the_staged_path() -> None:
    plan = planned(SPLIT | {"gpu_diag_allow_p2p": True}, with_evidence(BOX, p2p=[p2p(BOX, ((0, 1),))]))
    environment = render(plan, LAUNCHER).files["engines/text.env"].decode()
    assert "NCCL_P2P_DISABLE=1\n" in environment
    assert "corrupt" in plan.warnings[0]


def test_a_split_model_needs_a_p2p_check() -> None:
    refusal = _only(SPLIT, BOX)
    assert refusal.what == "There is no evidence of the p2p_check of gpu0, gpu1."
    assert "./box site -i INVENTORY" in refusal.remedy


def test_a_control_arm_is_not_a_p2p_check_on_gpus() -> None:
    assert "p2p_check" in _only(SPLIT, with_evidence(BOX, control=[control(BOX)])).what


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (p2p(BOX, verdict="inconclusive", class_="control_failed"), "failed"),
        (p2p(BOX, verdict="inconclusive", class_="probe_died"), "came to no end"),
        (p2p(BOX, control_words=0), "came to no end"),
        (p2p(BOX, boot_id=OTHER_BOOT), "is from another boot"),
    ],
)
def test_a_split_model_needs_a_clean_control_arm_of_this_boot(document: dict[str, Any], what: str) -> None:
    assert what in _only(SPLIT, with_evidence(BOX, p2p=[document])).what


def test_a_set_that_was_not_probed_as_a_set_is_refused() -> None:
    document = p2p(BOX)
    document["details"]["pairs"] = [pair for pair in document["details"]["pairs"] if pair["source"] != 1]
    assert "says nothing of gpu1 to gpu0" in _only(SPLIT, with_evidence(BOX, p2p=[document])).what


def test_where_the_driver_offers_no_peer_path_the_staged_one_is_used() -> None:
    document = p2p(BOX, others="not_applicable")
    assert planned(SPLIT, with_evidence(BOX, p2p=[document])).placements[0].path == "staged"


def test_heads_have_to_be_divisible() -> None:
    facts = copy.deepcopy(TESTED)
    path = "/var/lib/vllm-frontdoor/models/Qwen3.6-35B-A3B-FP8"
    facts["models"][path]["attention_heads"] = 9
    refusal = _only(SPLIT, facts)
    assert "9 attention heads" in refusal.what
    assert "one of 1, 3, 9" in refusal.remedy


def test_a_context_longer_than_the_models_is_refused() -> None:
    refusal = _only(with_service(RAW, "text", max_model_len=262145), BOX)
    assert refusal.where == "vllm_service_services.text.max_model_len"
    assert "has 262144" in refusal.what


def test_a_config_that_the_arguments_change_is_left_to_the_engine() -> None:
    arguments = ["--hf-overrides", '{"rope_parameters": {"rope_type": "yarn"}}']
    assert planned(with_service(RAW, "text", max_model_len=524288, extra_args=arguments), BOX)


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"config": False}, "has no config.json"),
        ({"problem": "config.json is not JSON"}, "can't be read"),
    ],
)
def test_a_model_folder_without_a_config_is_refused(facts: dict[str, Any], what: str) -> None:
    changed = copy.deepcopy(BOX)
    changed["models"]["/var/lib/vllm-frontdoor/models/OvisOCR2"] |= facts
    assert what in _only(RAW, changed).what


def test_on_cpu_devices_the_same_gate_is_walked() -> None:
    assert "control arm of left, right" in _only(CPU_SPLIT, CPU_BOX).what
    assert (
        "failed" in _only(CPU_SPLIT, with_evidence(CPU_BOX, control=[control(CPU_BOX, "inconclusive")])).what
    )
    facts = with_evidence(CPU_BOX, control=[control(CPU_BOX)])
    definition = render(planned(CPU_SPLIT, facts), LAUNCHER).engines.definition["services"]["even"]
    assert definition["cpuset"] == "0,1"
    assert definition["shm_size"] == "2g"
    assert definition["command"][definition["command"].index("--tensor-parallel-size") + 1] == "2"


def test_a_control_arm_over_too_few_shares_is_refused() -> None:
    facts = with_evidence(CPU_BOX, control=[control(CPU_BOX, shares=1)])
    assert "tested 1 shares" in _only(CPU_SPLIT, facts).what


def test_pipelines_over_cpu_devices_are_refused() -> None:
    raw = with_service(CPU_SPLIT, "even", tensor_parallel=1, pipeline_parallel=2)
    facts = with_evidence(CPU_BOX, control=[control(CPU_BOX)])
    assert "pipeline_parallel 2 on CPU devices" in _only(raw, facts).what


def test_all_that_is_wrong_is_said_in_one_run() -> None:
    raw = with_service(SPLIT, "text", max_model_len=10**7)
    raw = with_service(raw, "ocr", devices=["gpu7"])
    raw = with_service(raw, "embed", aliases=["TEXT"], extra_args=["--no-such-flag"], memory_fraction=0.89)
    facts = copy.deepcopy(with_evidence(BOX, integrity=[integrity(BOX, boot_id=OTHER_BOOT)]))
    facts["models"]["/var/lib/vllm-frontdoor/models/Qwen3.6-35B-A3B-FP8"]["attention_heads"] = 9
    said = " ".join(refusal.what for refusal in refusals(raw, facts))
    for part in ("context", "gpu7", "means 2 services", "--no-such-flag", "memory limit", "another boot",
                 "attention heads", "p2p_check"):  # fmt: skip
        assert part in said


# ------------------------------------------------------------------------------------- what --check takes


def test_check_mode_takes_for_granted_what_the_run_would_test() -> None:
    facts = with_evidence(BOX, integrity=[integrity(BOX, boot_id=OTHER_BOOT)], p2p=[])
    declaration = declared(SPLIT)
    discovered, evidence = predict(
        declaration.desired, discovered_from_box(facts, is_root=True), evidence_from_box(facts)
    )
    assert not isinstance(plan_declaration(declaration, discovered, evidence), list)


def test_an_image_that_the_run_would_make_is_told_as_such() -> None:
    facts = with_evidence(BOX) | {"images": {}}
    declaration = declared(RAW)
    discovered, evidence = predict(
        declaration.desired, discovered_from_box(facts, is_root=True), evidence_from_box(facts)
    )
    plan = plan_declaration(declaration, discovered, evidence)
    assert not isinstance(plan, list), plan
    assert f"Engine image {plan.engine_image.reference} (not on the box yet)," in plan_table(plan)


def _granted(raw: dict[str, Any], facts: dict[str, Any]) -> tuple[str, ...]:
    return taken_for_granted(
        declared(raw).desired, discovered_from_box(facts, is_root=True), evidence_from_box(facts)
    )


def test_what_check_mode_takes_for_granted_is_named() -> None:
    assert _granted(SPLIT, TESTED) == ()
    stale = with_evidence(BOX, integrity=[integrity(BOX, boot_id=OTHER_BOOT)], p2p=[], control=[])
    assert _granted(SPLIT, stale) == (
        "integrity test of gpu0, gpu1, gpu2",
        "p2p_check of gpu0, gpu1",
    )
    coming = RAW | {"model_files_packages": [{"name": "OvisOCR2"}]}
    absent = {path: facts for path, facts in TESTED["paths"].items() if not path.endswith("/OvisOCR2")}
    assert _granted(coming, TESTED | {"paths": absent}) == ("fetching the models of ocr",)
    untouched = BOX | {"images": {}, "evidence": {}, "docker": {"reachable": False, "error": "gone"}}
    assert _granted(RAW, untouched) == (
        "that Docker answers",
        "weights of text, ocr, embed",
        "integrity test of gpu0, gpu2",
        "that the engine image takes the arguments",
        "that the router takes its settings",
    )


def test_what_is_taken_for_granted_is_the_last_line_of_the_plan() -> None:
    plan = planned(RAW, with_evidence(BOX))
    assert "granted" not in plan_table(plan)
    last = plan_table(plan, ["weights of text", "integrity test of gpu0"]).splitlines()[-1]
    assert last == "Taken for granted, and shown by ./box site: weights of text; integrity test of gpu0"


def test_check_mode_does_not_forgive_what_failed() -> None:
    facts = with_evidence(TESTED, integrity=[integrity(BOX, {0: "corrupt"})])
    declaration = declared(SPLIT)
    discovered, evidence = predict(
        declaration.desired, discovered_from_box(facts, is_root=True), evidence_from_box(facts)
    )
    assert isinstance(plan_declaration(declaration, discovered, evidence), list)


# ----------------------------------------------------------------------- the probes and the plan agree


_VALUES = st.sampled_from([None, "a", "b"])
_GPU = st.fixed_dictionaries(
    {"uuid": _VALUES, "serial": _VALUES, "pci_address": st.sampled_from(["0", "1"]), "vbios": _VALUES}
)
_IDENTITIES = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("boot_id", "kernel", "kernel_command_line", "driver", "bios_version", "iommu_group_types",
             "acs_redirect"),
            _VALUES,
        ),
        "gpus": st.lists(_GPU, max_size=2, unique_by=lambda gpu: gpu["pci_address"]),
    }
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(recorded=_IDENTITIES, present=_IDENTITIES)
def test_the_plan_calls_stale_what_the_probes_call_stale(
    recorded: dict[str, Any], present: dict[str, Any]
) -> None:
    assert bool(differences(recorded, present)) == bool(differences_of_the_probes(recorded, present))


def test_the_plan_reads_the_same_identity_as_the_probes() -> None:
    assert discovered_from_box(BOX, is_root=True).identity == identity_of(BOX)


def test_evidence_of_a_shape_that_nobody_knows_is_no_evidence() -> None:
    for odd in ({}, {"verdict": 1}, integrity(BOX) | {"identity": None}):
        assert "There is no evidence" in _only(RAW, with_evidence(BOX, integrity=[odd])).what
    assert isinstance(outcome(RAW, with_evidence(BOX, integrity=[integrity(BOX) | {"details": 7}])), list)
    assert NOW > EARLIER
