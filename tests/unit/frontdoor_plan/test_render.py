from __future__ import annotations

import copy
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import yaml
from frontdoor_plan import Rendering, deployment, render
from frontdoor_plan.device_memory import device_memory
from frontdoor_plan.document import to_yaml
from frontdoor_plan.instance import LABEL_DEFINITION
from frontdoor_plan.render import definition_of
from plan_support import BOX_OF_GROUP, LAUNCHER, box, declared, planned, variables, with_service

RAW = variables("gpu_boxes")
BOX = box("three_gpus")
CPU_RAW = variables("rehearsal")
CPU_BOX = box("rehearsal")
GIB, MIB = 2**30, 2**20


def _render(raw: dict[str, Any] = RAW, facts: dict[str, Any] = BOX, launcher: bytes = LAUNCHER) -> Rendering:
    return render(planned(raw, facts), launcher)


def _engine(rendering: Rendering, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rendering.engines.definition["services"][name]
    return found


def _definitions(rendering: Rendering) -> dict[str, str]:
    projects = (rendering.engines, rendering.router)
    return {
        name: service["labels"][LABEL_DEFINITION]
        for project in projects
        for name, service in project.definition["services"].items()
    }


def _environment(rendering: Rendering, name: str) -> dict[str, str]:
    lines = rendering.files[f"engines/{name}.env"].decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("group", sorted(BOX_OF_GROUP))
def test_the_files_say_the_same_as_the_data(group: str) -> None:
    rendering = _render(variables(group), box(BOX_OF_GROUP[group]))
    for project in (rendering.engines, rendering.router):
        assert yaml.safe_load(rendering.files[project.file]) == project.definition


@pytest.mark.parametrize("group", sorted(BOX_OF_GROUP))
def test_every_service_gets_the_staged_path(group: str) -> None:
    rendering = _render(variables(group), box(BOX_OF_GROUP[group]))
    for name, service in rendering.engines.definition["services"].items():
        assert "--disable-custom-all-reduce" in service["command"]
        environment = _environment(rendering, name)
        assert environment["NCCL_P2P_DISABLE"] == "1"
        assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
        assert environment["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"


def test_sleep_mode_is_for_gpus_only() -> None:
    assert "--enable-sleep-mode" in _engine(_render(), "text")["command"]
    cpu = _render(CPU_RAW, CPU_BOX)
    assert "--enable-sleep-mode" not in _engine(cpu, "text")["command"]
    assert "--enforce-eager" in _engine(cpu, "text")["command"]


def test_a_cpu_service_is_told_its_cores_and_cache() -> None:
    raw = CPU_RAW | {"vllm_service_devices": {"left": {"cores": "0-2"}, "right": {"cores": "3"}}}
    raw = with_service(raw, "embed", kv_cache_memory_gib=3)
    rendering = _render(raw, CPU_BOX | {"cpu_count": 4})
    assert _engine(rendering, "text")["cpuset"] == "0,1,2"
    assert _environment(rendering, "text")["OMP_NUM_THREADS"] == "3"
    assert _environment(rendering, "text")["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert _environment(rendering, "embed")["VLLM_CPU_KVCACHE_SPACE"] == "3"


def test_a_gpu_is_pinned_by_its_uuid() -> None:
    (gpu,) = _engine(_render(), "ocr")["deploy"]["resources"]["reservations"]["devices"]
    assert gpu["device_ids"] == ["GPU-00000000-0000-4000-8000-000000000002"]


def test_every_setting_reaches_the_command_line() -> None:
    raw = with_service(
        RAW,
        "ocr",
        task="rerank",
        kv_cache_memory_gib=2,
        max_model_len=4096,
        reasoning_parser="r1",
        quantization="fp8",
        trust_remote_code=True,
        extra_args=["--max-num-seqs", 5],
    )
    command = " ".join(_engine(_render(raw), "ocr")["command"])
    assert command.endswith("--max-num-seqs 5")
    for part in (
        "--runner pooling --convert classify",
        "--kv-cache-memory-bytes 2147483648",
        "--max-model-len 4096",
        "--reasoning-parser r1",
        "--quantization fp8",
        "--trust-remote-code",
    ):
        assert part in command


def test_a_debug_port_is_on_loopback_and_opens_the_network() -> None:
    rendering = _render(with_service(RAW, "ocr", debug_port=True))
    assert _engine(rendering, "ocr")["ports"] == ["127.0.0.1:8022:8000"]
    networks = rendering.engines.definition["networks"]
    assert (networks["ocr"]["internal"], networks["text"]["internal"]) == (False, True)


def test_dollars_are_not_substituted_by_compose() -> None:
    rendering = _render(
        with_service(RAW, "ocr", extra_args=["--chat-template", "a$HOME"], environment={"A": "$B"})
    )
    assert _engine(rendering, "ocr")["command"][-1] == "a$$HOME"
    assert _environment(rendering, "ocr")["A"] == "'$B'"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain-1.0", "plain-1.0"),
        ("two words", "'two words'"),
        ("#no comment", "'#no comment'"),
        ('"', "'\"'"),
        ("it's $HOME", '"it\'s \\$HOME"'),
        ("end\\", '"end\\\\"'),
        ("", ""),
    ],
)
def test_environment_values_are_quoted_as_compose_reads_them(value: str, line: str) -> None:
    assert _environment(_render(with_service(RAW, "ocr", environment={"A": value})), "ocr")["A"] == line


@pytest.mark.parametrize(
    "settings",
    [{"max_model_len": 100}, {"environment": {"A": "1"}}, {"memory_fraction": 0.09}, {"debug_port": True}],
)
def test_changing_a_service_changes_its_definition_and_no_other(settings: dict[str, Any]) -> None:
    before, after = _definitions(_render()), _definitions(_render(with_service(RAW, "ocr", **settings)))
    assert {name for name in before if before[name] != after[name]} == {"ocr"}


@pytest.mark.parametrize("settings", [{"aliases": ["x"]}, {"pin": True}, {"idle_sleep_minutes": 1}])
def test_what_only_the_router_needs_restarts_nothing(settings: dict[str, Any]) -> None:
    before, after = _render(), _render(with_service(RAW, "ocr", **settings))
    assert _definitions(before) == _definitions(after)
    changed = {path for path in before.files if before.files[path] != after.files[path]}
    assert changed == {"registry/registry.json"}


def test_a_setting_of_the_router_restarts_the_router_alone() -> None:
    before, after = _definitions(_render()), _definitions(_render(RAW | {"router_hold_max_seconds": 60}))
    assert {name for name in before if before[name] != after[name]} == {"router"}


def test_another_launcher_changes_every_engine() -> None:
    before, after = _definitions(_render()), _definitions(_render(launcher=b"other"))
    assert {name for name in before if before[name] != after[name]} == {"text", "ocr", "embed"}


def test_the_label_is_the_digest_of_the_definition_without_it() -> None:
    for project in (_render().engines, _render().router):
        for service in project.definition["services"].values():
            assert definition_of(service) == service["labels"][LABEL_DEFINITION]


def test_the_registry_has_the_routers_shape() -> None:
    registry = json.loads(
        _render(with_service(RAW, "ocr", idle_sleep_minutes=0)).files["registry/registry.json"]
    )
    assert set(registry) == {"schema_version", "instance", "services"}
    assert (registry["schema_version"], registry["instance"]) == (1, "default")
    by_name = {service["name"]: service for service in registry["services"]}
    assert by_name["text"] == {
        "name": "text",
        "model": "Qwen3.6-35B-A3B-FP8",
        "aliases": ["qwen"],
        "task": "generate",
        "base_url": "http://10.213.0.18:8000",
        "launcher_url": "http://10.213.0.18:9000",
        "devices": ["GPU-00000000-0000-4000-8000-000000000000"],
        "definition": _definitions(_render())["text"],
        "idle_sleep_seconds": 900,
        "idle_offload_seconds": 10800,
        "pin": False,
        "allow_level_2": "auto",
        "may_record_canary": True,
    }
    assert by_name["ocr"]["idle_sleep_seconds"] == 0


def _device_memory(rendering: Rendering) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(rendering.files["registry/device-memory.json"])
    return document


def test_the_figures_of_the_plan_lie_beside_the_registry_which_older_routers_read() -> None:
    document = _device_memory(_render())
    gpu = document["devices"][2]
    assert (gpu["name"], gpu["kind"], gpu["total_bytes"]) == ("gpu2", "cuda", 80 * GIB)
    assert gpu["limit_bytes"] == int(80 * GIB * Decimal("0.88"))
    shares = {each["service"]: each for each in document["shares"]}
    assert shares["embed"] == {
        "service": "embed",
        "device": gpu["device"],
        "awake_bytes": 20 * GIB,
        "asleep_bytes": 5 * GIB,
        "measured": False,
    }


def test_a_residue_above_the_share_is_what_the_plan_allows() -> None:
    shares = _device_memory(_render(with_service(RAW, "ocr", memory_fraction=0.05)))["shares"]
    (ocr,) = [each for each in shares if each["service"] == "ocr"]
    assert (ocr["awake_bytes"], ocr["asleep_bytes"]) == (5 * GIB, 5 * GIB)


def test_on_the_cpu_the_hosts_memory_plays_the_gpus_part() -> None:
    document = _device_memory(_render(CPU_RAW, CPU_BOX))
    assert {each["kind"] for each in document["devices"]} == {"cpu"}
    assert all(each["awake_bytes"] == each["asleep_bytes"] > 0 for each in document["shares"])


def test_an_engine_on_several_cpu_devices_has_a_part_on_each() -> None:
    plan = planned(CPU_RAW, CPU_BOX)
    text = plan.placements[0]
    split = replace(plan, placements=(replace(text, devices=plan.devices),))
    first, second = json.loads(device_memory(split))["shares"]
    assert (first["device"], second["device"]) == ("cpu:left", "cpu:right")
    assert first["awake_bytes"] == second["awake_bytes"] == text.memory.host.size // 2


@pytest.mark.parametrize("difference", [-3 * MIB, 3 * MIB])
def test_a_few_mebibytes_of_the_host_change_no_file(difference: int) -> None:
    before = _render(CPU_RAW, CPU_BOX | {"memory_bytes": 24 * GIB + 20 * MIB})
    after = _render(CPU_RAW, CPU_BOX | {"memory_bytes": 24 * GIB + 20 * MIB + difference})
    assert before.files == after.files


@pytest.mark.parametrize(
    ("verdict", "recorded"),
    [("verified", True), ("values_only", True), ("structure_only", False), ("unverified", False)],
)
def test_only_weights_that_have_been_read_vouch_for_a_canary(verdict: str, recorded: bool) -> None:
    policy = ["verified", "values_only", "structure_only", "unverified"]
    facts = copy.deepcopy(BOX)
    for each in facts["evidence"]["weights"]:
        each["verdict"] = verdict
    rendering = _render(RAW | {"vllm_service_weights_required": policy}, facts)
    services = json.loads(rendering.files["registry/registry.json"])["services"]
    assert {each["may_record_canary"] for each in services} == {recorded}


def test_names_that_only_repeat_are_not_registered_twice() -> None:
    rendering = _render(with_service(RAW, "ocr", aliases=["OCR", "ovis", "Ovis", "ovisocr2"]))
    services = json.loads(rendering.files["registry/registry.json"])["services"]
    assert services[1]["aliases"] == ["ovis"]


def test_the_router_reads_its_folders_and_has_no_docker_socket() -> None:
    router = _render().router.definition["services"]["router"]
    assert (router["network_mode"], router["user"], router["read_only"]) == ("host", "10810:10810", True)
    assert router["cap_drop"] == ["ALL"]
    targets = [volume["target"] for volume in router["volumes"]]
    assert targets == ["/registry", "/state", "/secrets", "/evidence"]
    assert [volume["target"] for volume in router["volumes"] if not volume["read_only"]] == ["/state"]
    assert "docker.sock" not in str(router)


@pytest.mark.parametrize(
    ("address", "listens", "asked"),
    [
        ("0.0.0.0", "0.0.0.0:8000", "http://127.0.0.1:8000/health"),
        ("192.0.2.10", "192.0.2.10:8000", "http://192.0.2.10:8000/health"),
        ("::", "[::]:8000", "http://[::1]:8000/health"),
    ],
)
def test_the_public_address_is_listened_at_and_asked(address: str, listens: str, asked: str) -> None:
    rendering = _render(RAW | {"router_public_address": address})
    assert f"ROUTER_PUBLIC_ADDRESS={listens}\n" in rendering.files["router/router.env"].decode().replace(
        "'", ""
    )
    assert asked in rendering.router.definition["services"]["router"]["healthcheck"]["test"][-1]


def test_the_two_projects_are_asked_for_apart() -> None:
    plan, desired = planned(RAW, BOX), declared(RAW).desired
    rendering = render(plan, LAUNCHER)
    engines, router = (
        deployment.engines(plan, rendering, desired),
        deployment.router(plan, rendering, desired),
    )
    paths = [file["path"] for file in [*engines["files"], *router["files"]] if not file.get("once")]
    assert sorted(paths) == sorted(rendering.files)
    folders = [{entry["path"] for entry in project["directories"]} for project in (engines, router)]
    assert folders[0].isdisjoint(folders[1]), "made by one, or a prediction names it twice"
    # The router starts with the registry, and from then on it follows the containers.
    assert [file["path"] for file in router["files"] if file.get("once")] == ["registry/registry.json"]
    assert engines["compose_file"] == "engines/compose.yml"
    assert router["compose_file"] == "router/compose.yml"
    admin = {
        "url": "http://127.0.0.1:8010",
        "token_file": "/opt/vllm-frontdoor/default/secrets/admin-token",
    }
    assert engines["reload"] == {**admin, "when_changed": "registry/"}
    assert router["reload"] == {**admin, "when_changed": "secrets/"}
    assert router["replacement"] is None
    assert engines["replacement"] == {
        **admin,
        "registry": "registry/registry.json",
        "waves": [list(wave) for wave in plan.waves],
        "drain_seconds": 120,
        "prove_seconds": 900,
    }


def test_an_earlier_release_goes_along_as_it_would_be_deployed_today() -> None:
    plan, desired = planned(RAW, BOX), declared(RAW).desired
    rendering = render(plan, LAUNCHER)
    earlier = deployment.Earlier("release 3", rendering, plan)
    engines = deployment.engines(plan, rendering, desired, earlier)["previous"]
    router = deployment.router(plan, rendering, desired, earlier)["previous"]
    assert (engines["name"], engines["compose"]) == ("release 3", rendering.engines.definition)
    assert {file["path"] for file in engines["files"]} == {
        *(path for path in rendering.files if path.startswith("engines/")),
        "registry/registry.json",
    }
    assert router["compose"] == rendering.router.definition
    for file in [*engines["files"], *router["files"]]:
        # What is given as hidden would be masked in every diff that shows the same text.
        shown = "secret_content" if file["path"].endswith(".env") else "content"
        assert set(file) == {"path", shown}


def test_environments_are_for_root_only_and_are_never_shown() -> None:
    plan, desired = planned(RAW, BOX), declared(RAW).desired
    rendering = render(plan, LAUNCHER)
    for asked in (deployment.engines(plan, rendering, desired), deployment.router(plan, rendering, desired)):
        for file in asked["files"]:
            private = file["path"].endswith(".env")
            assert ("secret_content" in file, "content" in file) == (private, not private)
            assert file["mode"] == ("0640" if private else "0644")


def test_yaml_is_made_for_people() -> None:
    document: dict[str, Any] = {"a": {"b": ["x", {"c": True, "d": []}, "no"]}, "e": {}, "f": 1, "g": "8000"}
    assert to_yaml(document, ["Why."]) == (
        '# Why.\n---\na:\n  b:\n    - x\n    - c: true\n      d: []\n    - "no"\ne: {}\nf: 1\ng: "8000"\n'
    )
