"""The gate, run by a real ansible-playbook: what it hands on, what it refuses, and no way around it."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence_support import control, integrity, with_evidence
from plan_support import BOX_OF_GROUP, ENGINE_IMAGES, REPOSITORY, ROUTER_IMAGE, box
from plan_workshop import Run, Workshop

_STAGES = Path(__file__).parent / "playbooks" / "stages.yml"
_GOLDEN = REPOSITORY / "tests" / "golden"
_INVENTORIES = {"rehearsal": "inventory/rehearsal/hosts.yml", "gpu_boxes": "inventory/hosts.example.yml"}
_TOKEN = "hf_secret_of_the_test"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="module")
def deployed(workshop: Workshop) -> dict[str, Run]:
    """One run with each inventory of the repository."""
    return {group: _run(workshop, group) for group in _INVENTORIES}


def _run(workshop: Workshop, group: str, facts: Any = None, *arguments: str) -> Run:
    return workshop.run(
        _STAGES,
        _INVENTORIES[group],
        box(BOX_OF_GROUP[group]) if facts is None else facts,
        *("-e", f"vllm_service_image={ENGINE_IMAGES[group]}", "-e", f"router_image={ROUTER_IMAGE}"),
        *arguments,
    )


def _extra(**variables: Any) -> tuple[str, str]:
    return "-e", json.dumps(variables)


def _failed(run: Run) -> str:
    assert run.code == 2, run.output
    assert "Traceback" not in run.output
    assert run.asked_for == ()
    return run.output


def _unproven(group: str) -> dict[str, Any]:
    return copy.deepcopy(box(BOX_OF_GROUP[group])) | {"evidence": {"weights": []}}


@pytest.mark.parametrize("group", sorted(_INVENTORIES))
def test_the_role_deploys_the_golden_rendering(deployed: dict[str, Run], group: str) -> None:
    """With each inventory of the repository, so that its group_vars are proven to arrive."""
    run = deployed[group]
    assert run.code == 0, run.output
    golden = _GOLDEN / BOX_OF_GROUP[group]
    files = {
        file["path"]: file.get("content", file.get("secret_content"))
        for asked in run.asked_for
        for file in asked["files"]
    }
    expected = {
        str(path.relative_to(golden)): path.read_text(encoding="utf-8")
        for path in golden.rglob("*")
        if path.is_file() and path.name != "plan.txt"
    }
    assert files == expected
    for line in (golden / "plan.txt").read_text(encoding="utf-8").splitlines():
        assert line.split()[0] in run.output
    assert run.project("-router")["secrets"][0]["path"] == "secrets/admin-token"
    assert run.project("-engines")["healthy_timeout_seconds"] == 900


def test_check_mode_asks_for_the_same_and_changes_nothing(
    workshop: Workshop, deployed: dict[str, Run]
) -> None:
    run = _run(workshop, "rehearsal", None, "--check", "--diff")
    assert run.code == 0, run.output
    assert [asked["check_mode"] for asked in run.asked_for] == [True, True]
    real = deployed["rehearsal"].asked_for
    assert [asked | {"check_mode": True} for asked in real] == list(run.asked_for)


def test_check_mode_says_what_it_takes_for_granted(workshop: Workshop, deployed: dict[str, Run]) -> None:
    output = _run(workshop, "rehearsal", _unproven("rehearsal"), "--check").output
    said = "Taken for granted, and shown by ./box site: weights of text, embed; integrity test of left, right"
    assert said in output
    assert "Taken for granted" not in deployed["rehearsal"].output


def test_all_refusals_come_in_one_message_before_anything_is_changed(workshop: Workshop) -> None:
    services = {
        "text": {"slot": 1, "model": "a", "devices": ["left"], "environment": {"NCCL_P2P_DISABLE": 0}},
        "TEXT": {"slot": 1, "model": "A", "devices": ["right"], "tensor_parallel": "two"},
        "embed": {"slot": 1, "model": "a", "devices": ["lift"], "extra_args": ["--port=1"]},
    }
    run = _run(
        workshop,
        "rehearsal",
        None,
        *_extra(
            vllm_service_services=services,
            vllm_service_memory_limt=1,
            vllm_service_cpu_kv_cache_gib="{{ x }}",
        ),
    )
    output = _failed(run)
    for part in (
        "There is no plan: 9 reasons stand against it.",
        "Did you mean vllm_service_memory_limit?",
        "'x' is undefined",
        "NCCL_P2P_DISABLE is set to '0' by hand.",
        "Slot 1 is taken by 2 services",
        "The name a means 2 services",
        "Did you mean left?",
        "--port=1",
    ):
        assert part in output


def test_what_can_not_be_evaluated_is_one_reason(workshop: Workshop) -> None:
    services = {"text": {"slot": 1, "model": "{{ foo }}", "devices": ["left"]}}
    output = " ".join(
        _failed(_run(workshop, "rehearsal", None, *_extra(vllm_service_services=services))).split()
    )
    assert "There is no plan: 1 reason stands against it." in output
    assert "'foo' is undefined" in output


def test_services_under_another_name_are_found(workshop: Workshop) -> None:
    wrong = _extra(vllm_service_services={}, vllm_services={"text": {"slot": 1}})
    output = " ".join(_failed(_run(workshop, "rehearsal", None, *wrong)).split())
    assert "There is no plan: 1 reason stands against it." in output
    assert "vllm_services is set; did you mean vllm_service_services?" in output


def test_arguments_of_roles_that_come_later_are_checked_by_the_declaration(workshop: Workshop) -> None:
    wrong = ("engine_image_source=registri", "calibration_rounds=abc", "model_files_packages=abc")
    packages = [{"name": "m"}]
    run = _run(
        workshop,
        "rehearsal",
        None,
        *(word for each in (*wrong, "container_engine_install=maybe") for word in ("-e", each)),
        *_extra(model_files_small_models=packages, gpu_diag_room_timeout="{{ 300 + }}"),
    )
    output = " ".join(_failed(run).split())
    assert "There is no plan: 6 reasons stand against it." in output
    for part in (
        "engine_image_source can't be used: 'registri'. where: engine_image_source why: It is none of",
        "calibration_rounds can't be used: 'abc'.",
        "why: It is a text; needed is a whole number. what to do: Write a whole number, or leave it out.",
        "model_files_packages can't be used: 'abc'.",
        "container_engine_install can't be used: 'maybe'.",
        "model_files_small_models needs files, requirement, source as well.",
        "gpu_diag_room_timeout can't be evaluated.",
    ):
        assert part in output


def test_what_is_not_known_yet_is_left_to_its_role(workshop: Workshop) -> None:
    """Facts that a play hasn't gathered, and what a task registers later."""
    later = {
        "calibration_rounds": "{{ ansible_facts.processor_vcpus }}",
        "calibration_quiet_seconds": "{{ ansible_facts.uptime_seconds | default('gathered later') }}",
        "container_engine_install": "{{ __my_answer.stdout }}",
        "gpu_diag_rehash": "{{ my_wish | mandatory }}",
        "engine_image_base": {"image": "{{ ansible_facts.distribution | lower }}"},
        "engine_image_recipe": "{{ my_recipe }}",
        "my_recipe": "{{ ansible_facts.my_recipe | default('gathered later') }}",
    }
    run = _run(workshop, "rehearsal", None, *_extra(**later))
    assert run.code == 0, run.output


_EVERY_WAY_AROUND = [
    pytest.param((), id="nothing"),
    pytest.param(("--tags", "router,engines"), id="only what deploys"),
    pytest.param(("--tags", "engines"), id="only the engines"),
    pytest.param(("--skip-tags", "always,declaration,safety,plan"), id="skipped tags"),
    pytest.param(("--start-at-task", "Bring the engines into the planned state"), id="started at the end"),
    pytest.param(("--start-at-task", "Run the router"), id="started at the router"),
    pytest.param(("--limit", "localhost"), id="limited to the host"),
    pytest.param(
        (
            *("--start-at-task", "Run the router"),
            *_extra(
                box=box("rehearsal"),
                discovered=box("rehearsal"),
                ansible_facts={"box": box("rehearsal")},
                evidence={"weights": []},
                __vllm_service_plan={"placements": []},
                __vllm_service_declared={"model_folders": [], "probes": [], "cpu_devices": 0},
                __vllm_service_shown={"plan": "all is well"},
                __vllm_service_deployed={"changes": []},
            ),
        ),
        id="forged internals",
    ),
    pytest.param(
        _extra(vllm_service_skip_gate=True, vllm_service_force=True, gpu_diag_skip=True),
        id="made-up switches",
    ),
    pytest.param(_extra(gpu_diag_allow_p2p=True, gpu_diag_probes=[], gpu_diag_models=[]), id="real switches"),
    pytest.param(
        _extra(vllm_service_weights_required=["verified", "values_only", "unverified"]), id="policy"
    ),
]


@pytest.mark.parametrize("arguments", _EVERY_WAY_AROUND)
def test_nothing_leads_around_the_gate(workshop: Workshop, arguments: tuple[str, ...]) -> None:
    """Weights and devices are unproven; whatever is forged or skipped, no project is brought about."""
    output = _failed(_run(workshop, "rehearsal", _unproven("rehearsal"), *arguments))
    assert "Nobody has checked the weights" in output or "There is no variable" in output


def test_an_inventorys_variables_do_not_lead_around_it_either(workshop: Workshop, tmp_path: Path) -> None:
    """Inventory variables outrank what tasks register once the registering task is skipped."""
    forged = {
        "box": box("rehearsal"),
        "__vllm_service_shown": {"plan": "all is well"},
        "__vllm_service_declared": {"model_folders": [], "probes": [], "cpu_devices": 0},
        "__vllm_service_deployed": {"changes": [], "endpoint": "", "services": [], "usage": []},
    }
    inventory = tmp_path / "hosts.yml"
    group = {"children": {"rehearsal": {"hosts": {"localhost": forged}}}}
    inventory.write_text(json.dumps({"frontdoor": group}), encoding="utf-8")
    shutil.copytree(REPOSITORY / "group_vars", tmp_path / "group_vars")
    run = workshop.run(
        _STAGES,
        str(inventory),
        _unproven("rehearsal"),
        *("-e", f"vllm_service_image={ENGINE_IMAGES['rehearsal']}", "-e", f"router_image={ROUTER_IMAGE}"),
        *("--start-at-task", "Run the router"),
    )
    assert "Nobody has checked the weights" in _failed(run)


def test_a_rendered_file_changed_by_hand_is_put_back(workshop: Workshop, deployed: dict[str, Run]) -> None:
    """What lies on the disk is never read: the request holds what was planned, whatever is there."""
    facts = box("rehearsal") | {"containers": [{"name": "vllm-frontdoor-rehearsal-text", "id": "1",
        "labels": {"vllm-frontdoor.definition": "forged"}, "state": "running"}]}  # fmt: skip
    assert _run(workshop, "rehearsal", facts).asked_for == deployed["rehearsal"].asked_for


_SPLIT = {"even": {"slot": 1, "model": "even", "path": "all-MiniLM-L6-v2", "devices": ["left", "right"],
                   "tensor_parallel": 2}}  # fmt: skip


def test_a_split_model_without_a_control_arm_is_refused(workshop: Workshop) -> None:
    output = _failed(_run(workshop, "rehearsal", None, *_extra(vllm_service_services=_SPLIT)))
    assert "There is no evidence of the control arm of left, right" in output


def test_a_split_model_passes_the_same_gate_on_cpu_devices(workshop: Workshop) -> None:
    facts = with_evidence(box("rehearsal"), control=[control(box("rehearsal"))])
    run = _run(workshop, "rehearsal", facts, *_extra(vllm_service_services=_SPLIT))
    assert run.code == 0, run.output
    command = run.project("-engines")["compose"]["services"]["even"]["command"]
    assert command[command.index("--tensor-parallel-size") + 1] == "2"


def test_the_declaration_says_what_has_to_be_tested_before_the_plan(workshop: Workshop) -> None:
    run = _run(workshop, "rehearsal", None, "-v", *_extra(vllm_service_services=_SPLIT))
    assert re.search(r"probes:\s+- control\s+- integrity", run.output), run.output
    assert "cpu_devices: 2" in run.output


def test_the_images_own_words_refuse_before_anything_is_touched(workshop: Workshop) -> None:
    words = "unrecognized arguments: --enable-everything"
    answer = {"version": "0.27.1", "sleep_mode": True, "problems": {"text": words}}
    output = _failed(_run(workshop, "rehearsal", box("rehearsal") | {"arguments": answer}))
    assert words in " ".join(output.split())


def test_what_both_images_say_comes_in_one_message(workshop: Workshop) -> None:
    words, sentence = "unrecognized arguments: --x", "ROUTER_TLS_KEY is no key."
    said = {
        "arguments": {"version": "0.27.1", "sleep_mode": True, "problems": {"text": words}},
        "settings": {"problems": {"router": sentence}},
    }
    output = " ".join(_failed(_run(workshop, "rehearsal", box("rehearsal") | said)).split())
    assert words in output and sentence in output
    assert "2 reasons stand against it" in output


def test_engines_on_a_device_that_failed_its_test_are_stopped(workshop: Workshop) -> None:
    """The plan is refused, and what runs on that device may not go on either; the others may."""
    facts = box("three_gpus")
    labels = {"vllm-frontdoor.instance": "default", "vllm-frontdoor.service": "text"}
    devices = [gpu["uuid"] for gpu in facts["gpus"]]
    facts = with_evidence(facts, integrity=[integrity(facts, {0: "corrupt"})]) | {
        "containers": [
            {"name": f"engine-{number}", "id": "1", "state": "running",
             "labels": labels | {"vllm-frontdoor.devices": uuid}}
            for number, uuid in enumerate(devices)
        ]
    }  # fmt: skip
    output = _failed(_run(workshop, "gpu_boxes", facts))
    assert "container engine-0: gpu0: the integrity test of" in " ".join(output.split())
    assert "container engine-1" not in output
    assert "says that gpu0 is corrupt" in " ".join(output.split())


def test_stale_evidence_stops_nobody(workshop: Workshop) -> None:
    facts = box("three_gpus")
    uuid = facts["gpus"][0]["uuid"]
    stale = integrity(facts, {0: "corrupt"}, boot_id="another")
    labels = {"vllm-frontdoor.service": "text", "vllm-frontdoor.devices": uuid}
    containers = [{"name": "engine-0", "id": "1", "state": "running", "labels": labels}]
    output = _failed(
        _run(workshop, "gpu_boxes", with_evidence(facts, integrity=[stale]) | {"containers": containers})
    )
    assert "engine-0" not in output
    assert "is from another boot" in " ".join(output.split())


def test_forged_variables_do_not_change_what_is_deployed(
    workshop: Workshop, deployed: dict[str, Run]
) -> None:
    forged = _run(
        workshop,
        "rehearsal",
        None,
        *_extra(__vllm_service_shown={"plan": "forged"}, rendering={"files": {}}, box={"gpus": []}),
    )
    assert forged.asked_for == deployed["rehearsal"].asked_for
    assert len(forged.asked_for) == 2


def test_a_secret_reaches_its_environment_file_and_no_output(workshop: Workshop, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of the test\n", encoding="utf-8")
    vault = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-vault"),
            *("encrypt_string", "--vault-password-file", str(password), _TOKEN, "--name", "secret_token"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    variables = tmp_path / "variables.yml"
    variables.write_text(
        f'{vault.stdout}\nvllm_service_environment: {{HF_TOKEN: "{{{{ secret_token }}}}"}}\n',
        encoding="utf-8",
    )
    run = _run(
        workshop,
        "rehearsal",
        None,
        *("-e", f"@{variables}", "--vault-password-file", str(password), "-vvv", "--diff"),
    )
    assert run.code == 0, run.output
    files = {file["path"]: file for file in run.project("-engines")["files"]}
    assert f"HF_TOKEN={_TOKEN}\n" in files["engines/text.env"]["secret_content"]
    assert _TOKEN not in run.output


def test_facts_that_can_not_be_read_are_a_sentence(workshop: Workshop) -> None:
    output = _failed(_run(workshop, "rehearsal", {"schema_version": 7}))
    assert "take both from the same version" in output


def test_what_nobody_thought_of_is_a_sentence_too(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    broken = workshop.folder / "roles" / "vllm_service" / "module_utils" / "frontdoor_plan" / "planning.py"
    broken.write_text(
        broken.read_text(encoding="utf-8").replace("waves=waves(placements)", "waves=1 // 0"),
        encoding="utf-8",
    )
    output = _failed(_run(workshop, "rehearsal"))
    assert "ZeroDivisionError" in output
    assert "please report it" in output


def test_without_the_module_that_looks_at_the_box_a_sentence_says_so(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    (workshop.folder / "roles" / "gpu_diag" / "library" / "gpu_diag_box_facts.py").unlink()
    assert "gpu_diag_box_facts" in _failed(_run(workshop, "rehearsal"))


def test_a_module_that_dies_is_quoted(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    module = workshop.folder / "roles" / "gpu_diag" / "library" / "gpu_diag_box_facts.py"
    healthy = module.read_text(encoding="utf-8")
    module.write_text(f"from datetime import NO_SUCH_THING\n{healthy}", encoding="utf-8")
    output = " ".join(_failed(_run(workshop, "rehearsal")).split())
    assert "The module gpu_diag_box_facts broke off on the box. Its last words: ImportError:" in output
    assert "NO_SUCH_THING" in output
    ending = "import os, sys\nprint('out of memory', file=sys.stderr, flush=True)\nos._exit(3)\n"
    module.write_text(f"{ending}{healthy}", encoding="utf-8")
    assert "Its last words: out of memory." in " ".join(_failed(_run(workshop, "rehearsal")).split())


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This very Python, as it would be if it were 3.9: an older one is on few machines."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "names = 'major minor micro releaselevel serial'\n"
        "sys.version_info = collections.namedtuple('version_info', names)(3, 9, 2, 'final', 0)\n"
    )
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["run", "check mode"])
@pytest.mark.parametrize("broken", [False, True], ids=["modules that run", "a module that dies"])
def test_a_python_that_is_too_old_is_refused_first(
    tmp_path: Path, old_python: str, broken: bool, arguments: tuple[str, ...]
) -> None:
    workshop = Workshop(tmp_path)
    if broken:
        module = workshop.folder / "roles" / "gpu_diag" / "library" / "gpu_diag_box_facts.py"
        module.write_text(f"from datetime import NO_SUCH_THING\n{module.read_text()}", encoding="utf-8")
    interpreter = ("-e", f"ansible_python_interpreter={old_python}")
    output = " ".join(_failed(_run(workshop, "rehearsal", None, *interpreter, *arguments)).split())
    assert f"{old_python} is Python 3.9.2" in output
    assert "3.11 or newer" in output and "set ansible_python_interpreter" in output
    assert "TASK [vllm_service : Stop engines" not in output


def test_a_python_that_is_not_there_is_a_sentence(workshop: Workshop) -> None:
    run = _run(workshop, "rehearsal", None, "-e", "ansible_python_interpreter=/no/such/python3")
    output = " ".join(_failed(run).split())
    assert "/no/such/python3 doesn't run as a Python on the box" in output
    assert "Install Python 3.11 or newer" in output


def _check_box(workshop: Workshop, *arguments: str) -> Run:
    playbook = Path(__file__).parent / "playbooks" / "box.yml"
    return workshop.run(playbook, _INVENTORIES["rehearsal"], box("rehearsal"), *arguments)


def test_playbooks_without_services_check_the_box_all_the_same(workshop: Workshop, old_python: str) -> None:
    """Where the instance had a shared folder's name, a teardown would remove that folder."""
    nothing_declared = _extra(vllm_service_services={})
    good = _check_box(workshop, *nothing_declared, "--check")
    assert good.code == 0, good.output
    for name in ("models", "../..", "bundle"):
        assert "frontdoor_instance can't be used" in _failed(
            _check_box(workshop, *nothing_declared, *_extra(frontdoor_instance=name))
        )
    assert "model_files_hub_stall_seconds can't be used: 'long'" in _failed(
        _check_box(workshop, "-e", "model_files_hub_stall_seconds=long")
    )
    teardown = _extra(__vllm_service_reads=["frontdoor_", "vllm_service_purge"])
    wrong_elsewhere = _extra(vllm_service_services=["text"], calibration_rounds="abc")
    stopping = _check_box(workshop, *teardown, *wrong_elsewhere)
    assert stopping.code == 0, "what is declared wrong keeps nobody from stopping a box"
    purging = _check_box(workshop, *teardown, *_extra(vllm_service_purge="maybe"))
    assert "vllm_service_purge can't be used: 'maybe'" in _failed(purging)
    assert "router_hold_max_seconds can't be used: 'abc'" in _failed(
        _check_box(workshop, "-e", "router_hold_max_seconds=abc")
    )
    old = _check_box(workshop, "-e", f"ansible_python_interpreter={old_python}")
    assert "is Python 3.9.2" in " ".join(_failed(old).split())


def test_a_slip_in_what_a_playbook_reads_does_not_stop_another_instance(workshop: Workshop) -> None:
    teardown = _extra(__vllm_service_reads=["frontdoor_", "vllm_service_purge"])
    for slip, meant in (
        ("frontdoor_instnace", "frontdoor_instance"),
        ("vllm_service_prge", "vllm_service_purge"),
    ):
        output = _failed(_check_box(workshop, *teardown, "-e", f"{slip}=test"))
        assert f"There is no variable {slip}." in output
        assert f"Did you mean {meant}?" in output
    elsewhere = _check_box(workshop, *teardown, "-e", "calibration_rouns=5", "-e", "router_hold=abc")
    assert elsewhere.code == 0, elsewhere.output


def test_a_missing_launcher_is_a_sentence(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    (workshop.folder / "roles" / "vllm_service" / "files" / "launcher.py").unlink()
    assert "A file of the role vllm_service can't be read" in _failed(_run(workshop, "rehearsal"))
