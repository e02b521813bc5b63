"""Each rule refuses what it is for, where it is set, and nothing else does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from frontdoor_plan import Refusal, check_declaration, discovered_from_box
from plan_support import ENGINE_IMAGES, box, declared, planned, refusals, variables, with_service

RAW = variables("gpu_boxes")
BOX = box("three_gpus")
CPU_RAW = variables("rehearsal")
CPU_BOX = box("rehearsal")
MODELS = "/var/lib/vllm-frontdoor/models"


def _only(raw: dict[str, Any], facts: dict[str, Any]) -> Refusal:
    (refusal,) = refusals(raw, facts)
    return refusal


def _changed(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(facts) | changes


# ------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"aliases": ["QWEN"]}, "qwen"),
        ({"aliases": ["Text"]}, "text"),
        ({"aliases": ["qwen3.6-35b-a3b-fp8"]}, "qwen3.6-35b-a3b-fp8"),
        ({"model": "embed", "path": "OvisOCR2"}, "embed"),
    ],
)
def test_a_name_means_one_service_without_regard_to_case(settings: dict[str, Any], name: str) -> None:
    refusal = _only(with_service(RAW, "ocr", **settings), BOX)
    assert refusal.what.startswith(f"The name {name} means 2 services")
    assert "vllm_service_services.ocr" in refusal.where


def test_a_service_may_repeat_its_own_names() -> None:
    plan = planned(with_service(RAW, "ocr", aliases=["ocr", "OCR", "ovisocr2"]), BOX)
    assert plan.placements[1].service.name == "ocr"


def test_a_slot_belongs_to_one_service() -> None:
    refusal = _only(with_service(RAW, "ocr", slot=1), BOX)
    assert refusal.what == "Slot 1 is taken by 2 services: ocr, text."
    assert "such as 2" in refusal.remedy


@pytest.mark.parametrize("name", ["router", "engines", "all"])
def test_some_names_are_reserved(name: str) -> None:
    raw = RAW | {"vllm_service_services": {name: RAW["vllm_service_services"]["ocr"]}}
    assert _only(raw, BOX).where == f"vllm_service_services.{name}"


def test_debug_ports_end_at_slot_79() -> None:
    assert planned(with_service(RAW, "ocr", slot=79, debug_port=True), BOX)
    assert _only(with_service(RAW, "ocr", slot=80, debug_port=True), BOX).where.endswith("ocr.debug_port")


@pytest.mark.parametrize(
    "path", ["../secrets", "/etc/ssl", "/", "/srv", "a//b", "./x", "/srv/a:b", "/proc/1/cwd/x", "/usr"]
)
def test_a_model_folder_is_a_plain_path_of_its_own(path: str) -> None:
    raw = with_service(RAW, "ocr", path=path)
    found = check_declaration(declared(raw).desired, discovered_from_box(BOX, is_root=True))
    assert [refusal.where for refusal in found] == ["vllm_service_services.ocr.path"]


@pytest.mark.parametrize(("root", "what"), [("/etc/models", "belongs to the system"), ("/srv/a:b", "colon")])
def test_a_models_root_that_will_not_do_is_named_once(root: str, what: str) -> None:
    raw = with_service(RAW, "ocr", path="/srv/ocr") | {"vllm_service_models_root": root}
    (found,) = check_declaration(declared(raw).desired, discovered_from_box(BOX, is_root=True))
    assert found.where == "vllm_service_models_root"
    assert what in found.what
    elsewhere = RAW["vllm_service_services"]["ocr"] | {"path": "/srv/ocr"}
    raw |= {"vllm_service_services": {"ocr": elsewhere}}
    assert check_declaration(declared(raw).desired, discovered_from_box(BOX, is_root=True)) == []


def test_a_folder_that_follows_from_the_model_is_refused_as_the_model() -> None:
    (found,) = check_declaration(
        declared(with_service(RAW, "ocr", model="a:b", path=None)).desired,
        discovered_from_box(BOX, is_root=True),
    )
    assert found.where == "vllm_service_services.ocr.model"


def test_a_model_name_is_no_flag() -> None:
    raw = with_service(RAW, "ocr", model="--host", path="OvisOCR2")
    assert _only(raw, BOX).where == "vllm_service_services.ocr.model"


# ----------------------------------------------------------------------------------------------- devices


def test_a_gpu_that_is_not_there_is_refused() -> None:
    refusal = _only(with_service(RAW, "ocr", devices=["gpu3"]), BOX)
    assert refusal.what == "ocr wants the device gpu3, and there is none such."
    assert "gpu2 (0000:ab:00.0" in refusal.why


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("GPU2", "Did you mean gpu2?"),
        ("gpu_2", "Did you mean gpu2?"),
        ("Front", "Did you mean front?"),
        ("frnt", "Did you mean front?"),
        ("gpu7", "Name one of: front, gpu0, gpu1, gpu2."),
        ("gpu", "Name one of: front, gpu0, gpu1, gpu2."),
    ],
)
def test_a_device_with_another_number_is_not_what_was_meant(name: str, remedy: str) -> None:
    raw = RAW | {"vllm_service_devices": {"front": {"index": 0}}}
    assert _only(with_service(raw, "ocr", devices=[name]), BOX).remedy == remedy


def test_a_device_that_is_declared_wrong_is_not_missed_as_well() -> None:
    raw = RAW | {"vllm_service_devices": {"front": {"pci_adress": "0000:3d:00.0"}}}
    refusal = _only(with_service(raw, "ocr", devices=["front"], tensor_parallel=1), BOX)
    assert refusal.where == "vllm_service_devices.front.pci_adress"
    assert "Did you mean pci_address?" in refusal.remedy


def test_without_any_gpu_the_driver_is_pointed_at() -> None:
    found = refusals(with_service(RAW, "ocr", devices=["gpu9"]), _changed(BOX, gpus=[]))
    assert all("nvidia-smi -L" in refusal.remedy for refusal in found)
    assert len(found) == 3


@pytest.mark.parametrize(
    "handle",
    [{"index": 2}, {"pci_address": "00000000:AB:00.0"}, {"uuid": "GPU-00000000-0000-4000-8000-000000000002"}],
)
def test_a_gpu_may_be_named_by_any_of_its_handles(handle: dict[str, Any]) -> None:
    raw = with_service(RAW, "ocr", devices=["back"]) | {"vllm_service_devices": {"back": handle}}
    plan = planned(raw, BOX)
    assert plan.placements[1].devices[0].key == "GPU-00000000-0000-4000-8000-000000000002"


def test_a_board_that_is_gone_is_refused_where_it_was_named() -> None:
    raw = with_service(RAW, "ocr", devices=["back"])
    refusal = _only(raw | {"vllm_service_devices": {"back": {"pci_address": "0000:ff:00.0"}}}, BOX)
    assert refusal.where == "vllm_service_devices.back"


def test_two_names_of_one_gpu_are_one_gpu() -> None:
    raw = with_service(RAW, "ocr", devices=["gpu0"], memory_fraction=0.1)
    raw = with_service(raw, "text", devices=["front"], memory_fraction=0.5) | {
        "vllm_service_devices": {"front": {"index": 0}}
    }
    assert _only(raw, BOX).where == "vllm_service_services.text.exclusive"


def test_an_exclusive_service_shares_with_nobody() -> None:
    refusal = _only(with_service(RAW, "ocr", exclusive=True), BOX)
    assert refusal.what == "ocr wants gpu2 for itself, and embed is put there too."


def test_the_same_device_twice_is_refused() -> None:
    found = refusals(with_service(RAW, "text", devices=["gpu0", "gpu0"], tensor_parallel=2), BOX)
    assert "text names the same device twice." in [refusal.what for refusal in found]


def test_built_in_names_are_not_given_again() -> None:
    refusal = _only(RAW | {"vllm_service_devices": {"gpu1": {"index": 0}}}, BOX)
    assert refusal.where == "vllm_service_devices.gpu1"


def test_cores_have_to_be_there() -> None:
    refusal = _only(CPU_RAW, _changed(CPU_BOX, cpu_count=1))
    assert refusal.where == "vllm_service_devices.right.cores"
    assert "It has 1 cores" in refusal.why


def test_cores_belong_to_one_device() -> None:
    raw = CPU_RAW | {"vllm_service_devices": {"left": {"cores": "0-1"}, "right": {"cores": "1"}}}
    assert _only(raw, CPU_BOX).what == "The devices left, right share core 1."


def test_a_cpu_device_is_nothing_for_a_cuda_image() -> None:
    raw = with_service(RAW, "ocr", devices=["left"]) | {"vllm_service_devices": {"left": {"cores": "0"}}}
    assert _only(raw, BOX).what == "ocr wants left, a cpu device."


def test_an_image_for_unknown_devices_is_refused() -> None:
    facts = _changed(BOX)
    facts["images"][ENGINE_IMAGES["gpu_boxes"]]["labels"] = {"vllm-frontdoor.device": "abacus"}
    assert "vllm_service_image" in {refusal.where for refusal in refusals(RAW, facts)}


# ------------------------------------------------------------------------------------------------ memory


def test_fractions_may_reach_the_limit() -> None:
    assert planned(with_service(RAW, "ocr", memory_fraction="0.63"), BOX)


def test_fractions_over_the_limit_by_a_hair_are_refused() -> None:
    refusal = _only(with_service(RAW, "ocr", memory_fraction="0.6300001"), BOX)
    assert "gpu2 is over its memory limit" in refusal.what
    assert "= 0.8800001, the limit is 0.88" in refusal.what
    assert "Take at least 0.0000001 off (0.01 GiB), or move a service" in refusal.remedy
    assert refusal.why.startswith("They may be awake together")


def test_fractions_add_up_exactly() -> None:
    """0.1 + 0.2 + 0.58 is more than 0.88 in binary floating point."""
    raw = with_service(RAW, "ocr", memory_fraction=0.1)
    raw = with_service(raw, "embed", memory_fraction=0.2)
    raw = with_service(
        raw, "third", slot=9, model="OvisOCR2-b", path="OvisOCR2", devices=["gpu2"], memory_fraction=0.58
    )
    assert planned(raw, BOX)


def test_the_limit_can_be_set() -> None:
    refusal = _only(RAW | {"vllm_service_memory_limit": 0.8}, BOX)
    assert refusal.where.endswith("text.memory_fraction")
    assert refusal.why.startswith("It may be awake")
    assert "move" not in refusal.remedy


def test_a_fraction_has_to_be_said_on_a_gpu_and_not_on_a_cpu() -> None:
    assert _only(with_service(RAW, "ocr", memory_fraction=None), BOX).what == (
        "ocr says neither memory_fraction nor kv_cache_memory_gib."
    )
    refusal = _only(with_service(CPU_RAW, "text", memory_fraction=0.5), CPU_BOX)
    assert refusal.where == "vllm_service_services.text.memory_fraction"


def test_a_kv_cache_has_to_fit_into_the_fraction() -> None:
    assert planned(with_service(RAW, "ocr", kv_cache_memory_gib=7.5), BOX)
    refusal = _only(with_service(RAW, "ocr", kv_cache_memory_gib=8), BOX)
    assert refusal.what == "ocr wants a KV cache of 8 GiB within 8.00 GiB."


def test_a_kv_cache_on_a_cpu_is_whole_gib() -> None:
    assert planned(with_service(CPU_RAW, "text", kv_cache_memory_gib="2.0"), CPU_BOX)
    refusal = _only(with_service(CPU_RAW, "text", kv_cache_memory_gib=1.5), CPU_BOX)
    assert "whole number" in refusal.remedy


# ------------------------------------------------------------------------------------------- parallelism


@pytest.mark.parametrize("settings", [{"tensor_parallel": 2}, {"devices": ["gpu0", "gpu1"]}])
def test_parts_and_devices_have_to_be_as_many(settings: dict[str, Any]) -> None:
    assert _only(with_service(RAW, "text", **settings), BOX).where == "vllm_service_services.text.devices"


# ------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host", "::"],
        ["--port=9"],
        ["--model", "x"],
        ["--served-model-name", "x"],
        ["--served_model_name=x"],
        ["--tensor-parallel-size", "2"],
        ["--tensor-parallel", "2"],
        ["-tp", "2"],
        ["-tp2"],
        ["-pp=2"],
        ["--enable-sleep-mode"],
        ["--no-enable-sleep-mode"],
        ["--no-disable-custom-all-reduce"],
        ["--disable_custom_all_reduce"],
        ["--gpu-memory-util", "0.99"],
        ["--config", "/x.yaml"],
        ["--api-key", "x"],
        ["--max-num-seqs", "5", "--port", "1"],
        ["--port 9"],
        ["--", "x"],
        ["value"],
        ["--max-num-seqs 5"],
    ],
)
def test_arguments_that_override_the_plan_are_refused(arguments: list[str]) -> None:
    found = refusals(with_service(RAW, "ocr", extra_args=arguments), BOX)
    assert {refusal.where for refusal in found} == {"vllm_service_services.ocr.extra_args"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-num-seqs", "5"],
        ["--config-format", "mistral"],
        ["--enable-prefix-caching"],
        ["--no-enable-prefix-caching"],
        ["--model-impl=transformers"],
        ["--limit-mm-per-prompt", '{"image": 4}'],
        ["--compilation-config.mode", "0"],
        ["-O3"],
    ],
)
def test_other_arguments_are_passed_on(arguments: list[str]) -> None:
    plan = planned(with_service(RAW, "ocr", extra_args=arguments), BOX)
    assert plan.placements[1].service.extra_args == tuple(arguments)


@pytest.mark.parametrize("value", [0, "0", "false", "true", "2", "", " "])
def test_peer_to_peer_can_not_be_allowed_by_hand(value: object) -> None:
    refusal = _only(with_service(RAW, "ocr", environment={"NCCL_P2P_DISABLE": value}), BOX)
    assert refusal.where == "vllm_service_services.ocr.environment.NCCL_P2P_DISABLE"
    everywhere = _only(RAW | {"vllm_service_environment": {"NCCL_P2P_DISABLE": value}}, BOX)
    assert everywhere.where == "vllm_service_environment.NCCL_P2P_DISABLE"


@pytest.mark.parametrize("value", [1, "1"])
def test_the_digit_that_people_know_is_accepted(value: object) -> None:
    assert planned(with_service(RAW, "ocr", environment={"NCCL_P2P_DISABLE": value}), BOX)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_LEVEL", "SYS"),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM", "1"),
        ("VLLM_SERVER_DEV_MODE", "0"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("VLLM_API_KEY", "x"),
        ("OMP_NUM_THREADS", "64"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: True"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ],
)
def test_environment_variables_that_the_plan_owns_are_refused(name: str, value: str) -> None:
    refusal = _only(with_service(RAW, "ocr", environment={name: value}), BOX)
    assert refusal.where == f"vllm_service_services.ocr.environment.{name}"


@pytest.mark.parametrize("key", ["tool_call_parser", "reasoning_parser", "quantization"])
def test_a_name_of_a_parser_is_no_flag(key: str) -> None:
    assert _only(with_service(RAW, "ocr", **{key: "--x"}), BOX).where.endswith(f"ocr.{key}")


def test_only_generated_text_has_tool_calls() -> None:
    assert _only(with_service(RAW, "embed", tool_call_parser="x"), BOX).where.endswith("tool_call_parser")


# ----------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"exists": False, "is_directory": False, "entries": 0}, "isn't there"),
        ({"exists": True, "is_directory": False, "entries": 0}, "is not a folder"),
        ({"exists": True, "is_directory": True, "entries": 0}, "is empty"),
    ],
)
def test_the_model_folder_has_to_be_there(facts: dict[str, Any], what: str) -> None:
    changed = _changed(BOX)
    changed["paths"][f"{MODELS}/OvisOCR2"] = facts
    refusal = _only(RAW, changed)
    assert what in refusal.what
    assert refusal.where == "vllm_service_services.ocr.model"
    assert "./box pull OWNER/NAME -i INVENTORY" in refusal.remedy
    assert "vllmctl pull OWNER/NAME" in refusal.remedy


def test_weights_that_nobody_checked_are_refused_with_the_command() -> None:
    found = refusals(RAW, _changed(BOX, evidence=BOX["evidence"] | {"weights": []}))
    assert len(found) == 3
    assert all("./box site -i INVENTORY" in refusal.remedy for refusal in found)


def _with_verdict(verdict: str) -> dict[str, Any]:
    facts = _changed(BOX)
    facts["evidence"]["weights"][1]["verdict"] = verdict
    return facts


def test_failed_weights_are_never_served() -> None:
    policy = ["verified", "values_only", "structure_only", "unverified"]
    refusal = _only(RAW | {"vllm_service_weights_required": policy}, _with_verdict("failed"))
    assert "is failed" in refusal.what


@pytest.mark.parametrize("verdict", ["structure_only", "unverified"])
def test_the_policy_decides_on_weights(verdict: str) -> None:
    assert verdict in _only(RAW, _with_verdict(verdict)).what
    assert planned(RAW | {"vllm_service_weights_required": ["values_only", verdict]}, _with_verdict(verdict))


def test_a_verdict_on_other_files_does_not_count() -> None:
    facts = _changed(BOX)
    facts["weights"][f"{MODELS}/OvisOCR2"] = {"current": False, "reasons": ["model.safetensors has changed"]}
    refusal = _only(RAW, facts)
    assert "are not those that were checked" in refusal.what
    assert "model.safetensors has changed" in refusal.why
    assert len(refusals(RAW, _changed(BOX, weights={}))) == 3


def test_the_newest_verdict_counts() -> None:
    facts = _with_verdict("failed")
    again = copy.deepcopy(facts["evidence"]["weights"][1])
    facts["evidence"]["weights"].insert(
        0, again | {"verdict": "verified", "finished_at": "2026-08-13T09:00:00Z"}
    )
    assert planned(RAW, facts)


# -------------------------------------------------------------------------------------------------- host


def test_acting_as_somebody_else_than_root_is_refused() -> None:
    found = check_declaration(declared(RAW).desired, discovered_from_box(BOX, is_root=False))
    assert [refusal.where for refusal in found] == ["become (play, inventory or command line)"]


def test_a_docker_that_does_not_answer_is_one_refusal_with_its_words() -> None:
    docker = {"reachable": False, "error": "Cannot connect to the Docker daemon.", "version": None}
    refusal = _only(RAW, _changed(BOX, docker=docker))
    assert refusal.why == "Cannot connect to the Docker daemon."


def test_images_have_to_be_there() -> None:
    found = refusals(RAW, _changed(BOX, images=dict.fromkeys(BOX["images"])))
    assert {refusal.where for refusal in found} == {"vllm_service_image", "router_image"}


@pytest.mark.parametrize("name", ["vllm_service_image", "router_image"])
@pytest.mark.parametrize("value", [None, ["a"]])
def test_an_image_has_to_be_named(name: str, value: object) -> None:
    assert _only(RAW | {name: value}, BOX).where == name


def test_the_declaration_can_be_checked_without_docker_and_images() -> None:
    facts = _changed(BOX, docker={"reachable": False}, images={}, paths={}, evidence={})
    assert check_declaration(declared(RAW).desired, discovered_from_box(facts, is_root=True)) == []


@pytest.mark.parametrize(
    ("user", "refused"),
    [
        ({"process": "nginx", "pid": 12, "container": None}, "nginx (process 12)"),
        ({"process": "docker-proxy", "pid": 3, "container": "web"}, "the container web"),
        ({"process": None, "pid": None, "container": None}, "a process that could not be identified"),
    ],
)
def test_a_port_in_use_by_others_is_refused(user: dict[str, Any], refused: str) -> None:
    refusal = _only(RAW, _changed(BOX, ports={"8000": user}))
    assert refusal.what == f"TCP port 8000 is in use by {refused}."


def test_with_a_hanging_daemon_a_port_in_use_is_not_blamed_on_others_alone() -> None:
    user = {"process": "python3", "pid": 12, "container": None}
    docker = {"reachable": False, "error": "It gave no answer within 10 s.", "version": None}
    facts = discovered_from_box(_changed(BOX, docker=docker, ports={"8000": user}), is_root=True)
    found = {refusal.where: refusal for refusal in check_declaration(declared(RAW).desired, facts)}
    assert set(found) == {"container_engine_docker_host", "frontdoor_port_base"}
    assert "It gave no answer within 10 s." in found["container_engine_docker_host"].why


def test_our_own_container_may_hold_its_port() -> None:
    own = {"process": "python3", "pid": 12, "container": "vllm-frontdoor-default-router"}
    assert planned(RAW, _changed(BOX, ports={"8000": own, "8010": own}))


def test_a_debug_port_in_use_is_refused_where_it_was_asked_for() -> None:
    facts = _changed(BOX, ports={"8022": {"process": "sshd", "pid": 1, "container": None}})
    assert planned(RAW, facts)
    refusal = _only(with_service(RAW, "ocr", debug_port=True), facts)
    assert refusal.where == "vllm_service_services.ocr.debug_port"


@pytest.mark.parametrize("network", ["10.213.4.0/24", "10.0.0.0/8", "10.213.0.18/32"])
def test_a_network_that_the_box_reaches_elsewhere_is_refused(network: str) -> None:
    routes = [{"network": "0.0.0.0/0", "interface": "eth0"}, {"network": network, "interface": "vpn0"}]
    refusal = _only(RAW, _changed(BOX, routes=routes))
    assert refusal.where == "frontdoor_network"
    assert "a route through vpn0" in refusal.what
    assert planned(RAW | {"frontdoor_network": "172.30.0.0/16"}, _changed(BOX, routes=routes))


def _docker_network(name: str, subnet: str, instance: str | None) -> dict[str, Any]:
    labels = {"vllm-frontdoor.instance": instance} if instance else {}
    return {"name": name, "subnets": [subnet], "labels": labels}


def test_our_own_networks_and_their_routes_are_no_obstacle() -> None:
    networks = [_docker_network("vllm-frontdoor-default-ocr", "10.213.0.32/28", "default")]
    routes = [{"network": "10.213.0.32/28", "interface": "br-1"}]
    assert planned(RAW, _changed(BOX, networks=networks, routes=routes))


@pytest.mark.parametrize("instance", [None, "other"])
def test_networks_of_others_in_our_pool_are_refused_once(instance: str | None) -> None:
    networks = [_docker_network("theirs", "10.213.0.32/28", instance)]
    routes = [{"network": "10.213.0.32/28", "interface": "br-1"}]
    refusal = _only(RAW, _changed(BOX, networks=networks, routes=routes))
    assert "the Docker network theirs" in refusal.what


def test_a_network_that_somebody_put_in_place_of_ours_is_put_right_and_not_refused() -> None:
    inside_our_pool = [_docker_network("vllm-frontdoor-default-ocr", "10.213.0.32/28", None)]
    assert planned(RAW, _changed(BOX, networks=inside_our_pool))


def test_a_network_of_our_name_that_is_another_instances_is_refused() -> None:
    networks = [_docker_network("vllm-frontdoor-default-ocr", "172.31.0.0/28", "default-ocr")]
    assert _only(RAW, _changed(BOX, networks=networks)).where == "vllm_service_services.ocr"


# --------------------------------------------------------------------------------------------------- all


def test_all_refusals_come_at_once_and_in_a_fixed_order() -> None:
    raw = with_service(RAW, "ocr", slot=1, devices=["gpu7"], environment={"NCCL_P2P_DISABLE": 0})
    raw = with_service(raw, "text", devices=["gpu0", "gpu1"], tensor_parallel=2)
    facts = _changed(BOX, images=dict.fromkeys(BOX["images"]), ports={"8000": {"process": "nginx", "pid": 1}})
    found = refusals(raw, facts)
    assert len(found) == 7
    assert found == sorted(found) == refusals(raw, facts)
    assert all(each.what and each.where and each.why and each.remedy for each in found)
