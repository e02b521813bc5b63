from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import yaml
from frontdoor_plan import Refusal, parse
from frontdoor_plan.declaration import PREFIXES, SERVICE_KEYS
from frontdoor_plan.instance import SHARED_FOLDERS
from plan_support import declared, known_variables, variables, with_service

RAW = variables("gpu_boxes")


def _where(raw: dict[str, Any]) -> list[str]:
    return [refusal.where for refusal in declared(raw).refusals]


def _only(raw: dict[str, Any]) -> Refusal:
    (refusal,) = declared(raw).refusals
    return refusal


def test_the_examples_of_the_repository_are_understood() -> None:
    for group in ("gpu_boxes", "rehearsal"):
        assert declared(variables(group)).refusals == ()


def test_texts_from_the_command_line_mean_what_they_say() -> None:
    raw = with_service(
        RAW, "text", slot="1", devices="0", memory_fraction="0.85", exclusive="true", max_model_len="4096"
    )
    text = next(service for service in declared(raw).desired.services if service.name == "text")
    assert (text.slot, text.devices, text.memory_fraction) == (1, ("gpu0",), Decimal("0.85"))
    assert (text.exclusive, text.max_model_len) == (True, 4096)


def test_a_path_is_taken_from_the_models_root_unless_it_is_absolute() -> None:
    raw = with_service(RAW, "ocr", path="/srv/ocr/") | {"vllm_service_models_root": "/srv/models"}
    paths = {service.name: service.path for service in declared(raw).desired.services}
    assert paths["text"] == "/srv/models/Qwen3.6-35B-A3B-FP8"
    assert paths["ocr"] == "/srv/ocr"


@pytest.mark.parametrize(("value", "meant"), [(True, "always"), (False, "never"), ("auto", "auto")])
def test_allow_level_2_takes_booleans_too(value: object, meant: str) -> None:
    (found,) = {
        service.allow_level_2
        for service in declared(with_service(RAW, "ocr", allow_level_2=value)).desired.services
        if service.name == "ocr"
    }
    assert found == meant


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("vllm_service_memory_limt", "vllm_service_memory_limit"),
        ("vllm_service_service", "vllm_service_services"),
        ("router_idle_sleep_minute", "router_idle_sleep_minutes"),
        ("frontdoor_instanc", "frontdoor_instance"),
    ],
)
def test_a_misspelled_variable_is_refused_with_the_nearest_known_one(name: str, nearest: str) -> None:
    refusal = _only(RAW | {name: 1})
    assert refusal.where == name
    assert f"Did you mean {nearest}?" in refusal.remedy


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_unknown_variable_with_any_of_our_prefixes_is_refused(prefix: str) -> None:
    assert _where(RAW | {f"{prefix}zzz": 1}) == [f"{prefix}zzz"]


def test_variables_of_others_and_internal_ones_are_nobodys_business() -> None:
    assert declared(RAW | {"my_variable": 1, "__vllm_service_shown": 1}).refusals == ()


def test_an_unknown_setting_of_a_service_is_refused_with_the_nearest_known_one() -> None:
    refusal = _only(with_service(RAW, "ocr", max_model_length=5))
    assert refusal.where == "vllm_service_services.ocr.max_model_length"
    assert "Did you mean max_model_len?" in refusal.remedy


@pytest.mark.parametrize("key", SERVICE_KEYS)
def test_every_setting_of_a_service_refuses_a_wrong_type_by_name(key: str) -> None:
    wrong: object = [{"a": 1}] if key != "environment" else [1]
    assert f"vllm_service_services.ocr.{key}" in _where(with_service(RAW, "ocr", **{key: wrong}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frontdoor_instance", "Rehearsal"),
        ("frontdoor_instance", "a" * 32),
        ("frontdoor_network", "10.0.0.0/24"),
        ("frontdoor_port_base", 80),
        ("frontdoor_port_base", 65500),
        ("router_public_address", "everywhere"),
        ("router_uid", 0),
        ("router_hold_max_seconds", "long"),
        ("vllm_service_memory_limit", "88%"),
        ("vllm_service_memory_limit", 1.1),
        ("vllm_service_weights_required", []),
        ("vllm_service_weights_required", ["failed"]),
        ("vllm_service_models_root", "models"),
        ("vllm_service_models_root", "/"),
        ("vllm_service_models_root", "/srv/../etc"),
        ("vllm_service_cpu_kv_cache_gib", 0.5),
        ("vllm_service_healthy_timeout_seconds", 0),
        ("vllm_service_docker_host", ["a"]),
        ("vllm_service_devices", ["left"]),
        ("vllm_service_services", []),
        ("vllm_service_services", {}),
        ("vllm_service_environment", "A=1"),
    ],
)
def test_a_wrong_value_of_a_variable_is_refused_by_name(name: str, value: object) -> None:
    assert _where(RAW | {name: value}) == [name]


@pytest.mark.parametrize("name", SHARED_FOLDERS)
def test_an_instance_takes_no_folder_that_all_instances_share(name: str) -> None:
    refusal = _only(RAW | {"frontdoor_instance": name})
    assert refusal.where == "frontdoor_instance"
    assert all(each in refusal.why for each in SHARED_FOLDERS)
    assert declared(RAW | {"frontdoor_instance": f"{name}-2"}).refusals == ()


@pytest.mark.parametrize("nothing", [None, {}])
def test_where_nothing_is_declared_the_usual_reasons_are_named(nothing: object) -> None:
    remedy = _only(RAW | {"vllm_service_services": nothing}).remedy
    assert "group gpu_boxes" in remedy
    assert "group_vars belong beside the inventory" in remedy
    assert "gpu_boxes" not in _only(RAW | {"vllm_service_services": ["text"]}).remedy


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("vllm_service_memory_limit", "88%", "0.88"),
        ("vllm_service_memory_limit", 88, "0.88"),
        ("vllm_service_memory_limit", 10, "0.1"),
        ("vllm_service_memory_limit", "5%", "0.05"),
        ("vllm_service_memory_limit", 1.5, "0.88"),
        ("vllm_service_memory_limit", 2, "0.88"),
        ("vllm_service_memory_limit", "1.0001", "0.88"),
        ("vllm_service_memory_limit", "0,5", "0.5"),
        ("vllm_service_memory_limit", "most", "0.88"),
        ("vllm_service_memory_limit", "0%", "0.88"),
        ("vllm_service_host_memory_limit", "950%", "0.9"),
    ],
)
def test_the_example_for_a_number_is_one_that_would_do(name: str, value: object, example: str) -> None:
    refusal = _only(RAW | {name: value})
    assert refusal.remedy.endswith(f", such as {example}.")
    assert declared(RAW | {name: example}).refusals == ()


def test_what_was_meant_for_the_services_is_named() -> None:
    others = ["inventory_hostname", "vllm_services", "services", "my_vllm"]
    raw = RAW | {"vllm_service_services": {}}
    guess = "vllm_services is set; did you mean vllm_service_services? Write vllm_service_services: {text: "
    (refusal,) = parse(raw, known_variables(), others).refusals
    assert refusal.remedy.startswith(guess)
    (refusal,) = parse(raw, known_variables(), ["inventory_hostname", "service_account"]).refusals
    assert refusal.remedy.startswith("Write vllm_service_services: {text: ")
    assert parse(RAW, known_variables(), others).refusals == ()


@pytest.mark.parametrize(
    ("group", "example"),
    [
        ("gpu_boxes", "{slot: 4, model: NAME, devices: [gpu0], memory_fraction: 0.5}"),
        ("rehearsal", "{slot: 3, model: NAME, devices: [left]}"),
    ],
)
def test_a_service_with_nothing_in_it_is_shown_one_that_would_do(group: str, example: str) -> None:
    raw = variables(group)
    services = raw["vllm_service_services"]
    refusal = _only(raw | {"vllm_service_services": services | {"t6": None}})
    assert refusal.where == "vllm_service_services.t6"
    assert refusal.remedy == f"Write vllm_service_services.t6: {example}."
    taken = services | {"t6": yaml.safe_load(example)}
    assert declared(raw | {"vllm_service_services": taken}).refusals == ()


@pytest.mark.parametrize(
    ("lines", "what", "remedy"),
    [
        (
            "{text: null, slot: 1, model: a, devices: [gpu0]}",
            "slot, model, devices stand beside text.",
            "Indent slot, model, devices below text.",
        ),
        (
            "{text: {slot: 1, model: a, devices: [gpu0]}, environment: {A: b}}",
            "environment stands beside the services.",
            "Indent environment below the service that is meant.",
        ),
        ("{text: {}, task: embed}", "task stands beside text.", "Indent task below text."),
    ],
)
def test_settings_beside_their_service_are_one_slip(lines: str, what: str, remedy: str) -> None:
    refusal = _only(RAW | {"vllm_service_services": yaml.safe_load(lines)})
    assert (refusal.where, refusal.what) == ("vllm_service_services", what)
    assert refusal.remedy == remedy


def test_a_service_may_be_named_like_a_setting() -> None:
    ocr = RAW["vllm_service_services"]["ocr"]
    for name in ("task", "environment"):
        assert declared(RAW | {"vllm_service_services": {name: ocr}}).refusals == ()


@pytest.mark.parametrize("key", ["slot", "model", "devices"])
def test_what_a_service_must_say_is_asked_for(key: str) -> None:
    refusal = _only(with_service(RAW, "ocr", **{key: None}))
    assert refusal.what == f"vllm_service_services.ocr has no {key}."


@pytest.mark.parametrize("name", ["Text", "-text", "a" * 32, "te xt", 5.5])
def test_a_service_needs_a_plain_name(name: object) -> None:
    raw = RAW | {"vllm_service_services": {name: RAW["vllm_service_services"]["ocr"]}}
    assert _where(raw) == [f"vllm_service_services.{name}"]


@pytest.mark.parametrize(
    "wish",
    [None, "0", {}, {"cores": "0", "index": 0}, {"core": "0"}, {"uuid": "gpu0"}, {"pci_address": "3d"}],
)
def test_a_device_is_named_by_exactly_one_thing(wish: object) -> None:
    where = _where(RAW | {"vllm_service_devices": {"front": wish}})
    assert where
    assert all(place.startswith("vllm_service_devices.front") for place in where)


def test_a_misspelt_key_of_a_device_is_one_reason() -> None:
    assert _where(RAW | {"vllm_service_devices": {"front": {"pci_adress": "0000:3d:00.0"}}}) == [
        "vllm_service_devices.front.pci_adress"
    ]
    twice = {"front": {"indx": 0, "index": 0, "cores": "0"}}
    assert len(_where(RAW | {"vllm_service_devices": twice})) == 2


def test_names_too_large_to_print_are_refused_too() -> None:
    raw = with_service(RAW, "ocr", environment={10**5000: 1}) | {
        "vllm_service_devices": {10**5000: {10**5000: 1}}
    }
    assert len(declared(raw).refusals) == 3
    slots = {10**5000: None, "text": {"slot": 10**5000, "model": "a", "devices": ["gpu0"]}, "ocr": None}
    assert len(declared(RAW | {"vllm_service_services": slots}).refusals) == 4


def test_all_mistakes_are_told_at_once() -> None:
    raw = with_service(RAW, "ocr", slot="x", memory_fraction=5, environment={"A": True, "1": "b"}) | {
        "frontdoor_port_base": 1,
        "router_gone": 1,
    }
    assert len(declared(raw).refusals) == 6


def test_a_secret_value_is_not_repeated() -> None:
    found = declared(with_service(RAW, "ocr", environment={"HF_TOKEN": "hf_secret\n"})).refusals
    assert len(found) == 1
    assert "hf_secret" not in str(found)


def test_without_known_names_every_variable_of_ours_is_unknown() -> None:
    assert len(parse(RAW, ()).refusals) == len([name for name in RAW if name in known_variables()])
