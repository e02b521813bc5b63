"""The router's settings: what people write arrives at the router, and what is secret stays secret."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import wake_router.settings as router
import yaml
from frontdoor_plan import (
    deployment,
    endpoint,
    plan_table,
    release_content,
    release_files,
    render,
    usage_lines,
)
from frontdoor_plan.router_settings import SETTINGS
from plan_support import LAUNCHER, ROLES, box, declared, planned, refusals, variables
from wake_router.access import read_keys

RAW = variables("gpu_boxes")
BOX = box("three_gpus")
KEY = "sk-a-secret-of-the-test"
DIGEST = "0e5cd4e2f6c7c0a7c0ad4bd9cb2b7a5c2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIE-a-private-key-of-the-test\n-----END PRIVATE KEY-----"
TLS = {"router_tls_certificate": CERTIFICATE, "router_tls_key": PRIVATE_KEY}


def rendered(**more: Any) -> dict[str, str]:
    files = render(planned(RAW | more, BOX), LAUNCHER).files
    return {path: content.decode() for path, content in files.items()}


def environment(**more: Any) -> dict[str, str]:
    lines = rendered(**more)["router/router.env"].splitlines()
    return {name: value.strip("'\"") for name, _, value in (line.partition("=") for line in lines)}


def test_every_setting_of_the_router_has_a_variable() -> None:
    documented = set(re.findall(r"^\| ((?:ROUTER|IDLE)_[A-Z_]+) ", router.__doc__ or "", re.MULTILINE))
    assert len(documented) > 30
    with_all = environment(
        **TLS,
        router_api_keys=[{"name": "a", "key": KEY}],
        router_health_address="127.0.0.1:8099",
        router_admin_hosts=["box"],
        router_cors_origins="*",
    )
    assert documented == {name for name in with_all if not name.startswith("FRONTDOOR_")}


def test_the_defaults_are_the_routers_own() -> None:
    plain, by_role = router.read_settings({}), router.read_settings(environment())
    assert by_role == plain


def test_every_default_is_of_the_type_that_the_specification_says() -> None:
    options = yaml.safe_load((ROLES / "router/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    for setting in SETTINGS:
        option = options["options"][f"router_{setting.key}"]
        expected = {"str": str, "list": list, "int": int, "float": int}[option["type"]]
        assert isinstance(option["default"], expected), setting.key


def test_what_is_set_arrives_in_the_unit_of_its_name() -> None:
    found = router.read_settings(
        environment(
            router_retry_after_max_seconds=120,
            router_held_max_mib="0.5",
            router_observe_interval_seconds=0.25,
            router_cors_origins=["https://Chat.example.org/", "http://10.0.0.1:3000"],
            router_admin_hosts=["Box.example.org"],
            router_health_address="[::1]:8099",
        )
    )
    assert found.retry_after_max_seconds == 120
    assert found.held_max_bytes == 512 * 1024
    assert found.observe_interval_seconds == 0.25
    assert found.cors_origins == {"https://chat.example.org", "http://10.0.0.1:3000"}
    assert found.admin_hosts == {"box.example.org"}
    assert found.health_address is not None and found.health_address.port == 8099


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("router_retry_after_max_seconds", 0),
        ("router_observe_interval_seconds", "fast"),
        ("router_canary_interval_seconds", -1),
        ("router_held_max_requests", True),
        ("router_body_max_mib", 1e12),
        ("router_cors_origins", ["chat.example.org"]),
        ("router_cors_origins", ["https://chat.example.org/path"]),
        ("router_admin_hosts", ["a b"]),
        ("router_health_address", "8081"),
        ("router_health_address", "somewhere:8081"),
        ("router_health_address", "10.0.0.1:0"),
        ("router_health_address", "10.0.0.1:8000"),
        ("router_health_address", "10.0.0.1:8010"),
        ("router_tls_certificate", CERTIFICATE),
        ("router_tls_key", PRIVATE_KEY),
        ("router_tls_certificate", "/etc/ssl/tls.pem"),
        ("router_api_keys", {"name": "a", "key": KEY}),
        ("router_api_keys", [KEY]),
        ("router_api_keys", [{"name": "a"}]),
        ("router_api_keys", [{"name": "a", "key": KEY, "sha256": DIGEST}]),
        ("router_api_keys", [{"name": "a", "sha256": "abc"}]),
        ("router_api_keys", [{"name": "a b", "key": KEY}]),
        ("router_api_keys", [{"name": "a", "key": KEY, "per_hour": 1}]),
        ("router_api_keys", [{"name": "a", "key": KEY, "per_minute": 0}]),
        ("router_api_keys", [{"name": "a", "key": KEY}, {"name": "a", "key": "other"}]),
    ],
)
def test_what_cannot_be_used_is_refused_once_and_without_secrets(name: str, value: Any) -> None:
    (refusal,) = refusals(RAW | {name: value}, BOX)
    assert refusal.where.startswith(name[:10])
    text = " ".join([refusal.where, refusal.what, refusal.why, refusal.remedy])
    assert KEY not in text and "a-private-key" not in text


def test_the_port_for_checks_is_looked_after_like_the_others() -> None:
    facts = box("three_gpus")
    facts["ports"]["8099"] = {"process": "nginx", "pid": 12, "container": None}
    (refusal,) = refusals(RAW | {"router_health_address": "0.0.0.0:8099"}, facts)
    assert refusal.where == "router_health_address" and "nginx" in refusal.what


def test_keys_reach_the_box_as_digests_that_the_router_understands(tmp_path: Path) -> None:
    keys = [
        {"name": "alice", "key": KEY, "concurrent": 2},
        {"name": "bob", "sha256": DIGEST, "per_minute": "60"},
    ]
    files = rendered(router_api_keys=keys)
    (tmp_path / "keys.json").write_text(files["secrets/api-keys.json"])
    alice, bob = read_keys(tmp_path / "keys.json")
    assert (alice.name, alice.concurrent, alice.per_minute) == ("alice", 2, None)
    assert (bob.name, bob.sha256, bob.per_minute) == ("bob", DIGEST, 60)
    assert KEY not in json.dumps(files)


def test_changed_keys_need_no_new_router_and_new_tls_does() -> None:
    def definition(**more: Any) -> str:
        labels = render(planned(RAW | more, BOX), LAUNCHER).router.definition["services"]["router"]["labels"]
        return str(labels["vllm-frontdoor.definition"])

    one, other = ([{"name": "a", "key": key}] for key in (KEY, "other"))
    assert definition(router_api_keys=one) == definition(router_api_keys=other) != definition()
    assert definition(**TLS) != definition()


def test_secrets_are_for_the_router_alone_and_are_in_no_release() -> None:
    raw = RAW | TLS | {"router_api_keys": [{"name": "a", "key": KEY}]}
    plan, desired = planned(raw, BOX), declared(raw).desired
    rendering = render(plan, LAUNCHER)
    files = {file["path"]: file for file in deployment.router(plan, rendering, desired)["files"]}
    for path in ("secrets/api-keys.json", "secrets/tls-certificate.pem", "secrets/tls-key.pem"):
        assert files[path]["mode"] == "0640" and files[path]["group"] == "10810"
        assert "secret_content" in files[path] and "content" not in files[path]
    kept = json.dumps([release_content(raw, plan, rendering), release_files(rendering)])
    assert "a-private-key" not in kept and KEY not in kept and "api-keys.json" not in json.loads(kept)[1]
    assert "a-private-key" not in repr(plan)


@pytest.mark.parametrize(
    ("secrets", "line"),
    [
        ({}, "For clients: API keys off, TLS off"),
        ({"router_api_keys": [{"name": "a", "key": KEY}]}, "For clients: API keys on (1), TLS off"),
        (TLS, "For clients: API keys off, TLS on"),
    ],
)
def test_the_plan_says_what_clients_need(secrets: dict[str, Any], line: str) -> None:
    assert line in plan_table(planned(RAW | secrets, BOX)).splitlines()


def test_with_tls_everything_asks_by_https() -> None:
    plan = planned(RAW | TLS | {"router_api_keys": [{"name": "a", "key": KEY}]}, BOX)
    assert endpoint(plan) == "https://127.0.0.1:8000"
    probe = render(plan, LAUNCHER).router.definition["services"]["router"]["healthcheck"]["test"][-1]
    assert "'https://127.0.0.1:8000/health'" in probe and "unverified" in probe
    assert "curl --insecure -H 'Authorization: Bearer KEY' https://" in usage_lines(plan)[-1]
