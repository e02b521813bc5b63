"""The operator's tools on the rehearsal box: real engines, real containers, vllmctl as it is installed."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from typing import Any

import pytest
from rehearsal_box import (
    ADMIN,
    INSTANCE,
    Deployed,
    admin,
    container_ids,
    container_name,
    docker,
    service_status,
)

from tests.standin.processes import wait_until

PATIENCE_SECONDS = 300
VLLMCTL = "/usr/local/bin/vllmctl"


def vllmctl(*words: str, statuses: tuple[int, ...] = (0,)) -> str:
    """What a command prints; one of the statuses, and no traceback but those in the logs of others."""
    result = subprocess.run(
        [VLLMCTL, "--instance", INSTANCE, *words],
        capture_output=True, text=True, timeout=900, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    print(f"--- vllmctl {' '.join(words)}: {result.returncode}\n{result.stdout}{result.stderr}")
    assert result.returncode in statuses, result
    if "logs" not in words:
        assert "Traceback" not in result.stderr
    return result.stdout


@pytest.fixture(autouse=True)
def running(deployed: Deployed) -> None:
    """All of these look at one deployed rehearsal."""


def test_status_measures_memory() -> None:
    head, *lines = vllmctl("status").splitlines()
    assert "MEMORY" in head
    assert all(" host" in line for line in lines)


def test_launchers_measure_and_the_plan_is_kept() -> None:
    """In the engines' own containers, which have no capability; the plan's figures reach the router."""
    wait_until(
        lambda: all(
            device["over_plan"] is False and device["used_bytes"] > 100_000_000 for device in device_memory()
        ),
        PATIENCE_SECONDS,
        "both devices are measured and within the plan",
    )
    assert [each["name"] for each in device_memory()] == ["left", "right"]


def device_memory() -> list[dict[str, Any]]:
    """What the router says of the devices' memory."""
    found: list[dict[str, Any]] = admin("/admin/status", method="GET")["device_memory"]
    print([{name: each[name] for name in ("name", "used_bytes", "planned_bytes")} for each in found])
    return found


def test_sleep_and_up_move_the_real_engine() -> None:
    assert vllmctl("sleep", "smol") == "text is sleeping.\n"
    assert service_status("text")["depth"] == "sleeping"
    assert "is sleeping since" in vllmctl("why", "text")
    assert vllmctl("up", "SmolLM2-135M-Instruct") == "text is awake.\n"


def test_down_discards_the_weights_of_the_real_engine() -> None:
    assert vllmctl("down", "embed") == "embed is offloaded.\n"
    assert vllmctl("up", "embed") == "embed is awake.\n"
    assert service_status("embed")["conditions"] == []


def test_a_pinned_service_is_left_alone() -> None:
    assert vllmctl("pin", "embed") == "embed is pinned (awake).\n"
    assert json.loads(vllmctl("down", "--json"))["services"][0]["service"] == "text"
    assert service_status("embed")["depth"] == "awake"
    assert vllmctl("unpin", "embed") == "embed is no longer pinned (awake).\n"


def test_restart_exchanges_the_engines_process_and_nothing_else() -> None:
    """The router orders it from the launcher, with the service's own token."""
    before, process = container_ids(), _incarnation("embed")
    assert vllmctl("restart", "embed") == "embed is awake.\n"
    assert _incarnation("embed") != process
    assert container_ids() == before
    assert service_status("embed")["conditions"] == []


def _incarnation(service: str) -> str:
    """The launcher's id of the running process."""
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9000/state').read().decode())"
    return str(json.loads(docker("exec", container_name(service), "python3", "-c", ask))["incarnation"])


def test_drain_and_prove_hold_and_let_through() -> None:
    assert "embed is drained; requests in flight: 0" in vllmctl("drain", "embed")
    assert service_status("embed")["conditions"] == ["maintenance"]
    assert "embed is proven; canary:" in vllmctl("prove", "embed")
    assert service_status("embed")["conditions"] == []


def test_events_and_top_show_what_happens() -> None:
    vllmctl("sleep", "embed")
    vllmctl("up", "embed")
    events = vllmctl("events")
    assert re.search(r"Z  embed +fell asleep in .*, was awake$", events, re.MULTILINE)
    assert re.search(
        r"Z  embed +was woken from sleeping in .*: ordered by operator '.*': awake$", events, re.M
    )
    assert "embed" in vllmctl("top", "--interval", "1", "--count", "1")


def test_chat_is_answered_and_counted() -> None:
    before = _tokens()
    assert vllmctl("chat", "text", "What is the capital of France?", "--max-tokens", "8").strip()
    request = urllib.request.Request(
        f"{ADMIN[:-2]}00/v1/chat/completions",
        data=json.dumps(
            {"model": "text", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        ).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        usage = json.load(answer)["usage"]
    assert _tokens() - before == usage["prompt_tokens"] + usage["completion_tokens"]


def _tokens() -> int:
    found = json.loads(vllmctl("usage", "--json"))["usage"]
    return sum(
        each["prompt_tokens"] + each["completion_tokens"] for each in found if each["service"] == "text"
    )


def test_list_shows_who_serves_what_with_verdicts() -> None:
    found = {each["name"]: each for each in json.loads(vllmctl("list", "--json"))["models"]}
    assert found["SmolLM2-135M-Instruct"]["services"] == ["text"]
    assert found["SmolLM2-135M-Instruct"]["verdict"] in ("verified", "values_only")
    assert found["SmolLM2-135M-Instruct"]["size_bytes"] > 100_000_000


def test_logs_are_the_containers() -> None:
    """An engine that was told to end while it worked may have left a traceback in them."""
    assert "launcher" in vllmctl("logs", "2000", "text")
    assert '"event":' in vllmctl("logs", "5", "router")


def test_doctor_finds_containers_and_evidence() -> None:
    findings = {
        each["check"]: each for each in json.loads(vllmctl("doctor", "--json", statuses=(0, 1)))["findings"]
    }
    for check in ("router", "engine text", "engine embed", "container text", "container router", "versions"):
        assert findings[check]["level"] == "OK", findings[check]
    assert findings["weights SmolLM2-135M-Instruct"]["level"] == "OK"


def test_the_status_page_is_served() -> None:
    with urllib.request.urlopen(f"{ADMIN}/status", timeout=30) as answer:
        page = answer.read().decode()
    assert "SmolLM2-135M-Instruct" in page
    assert "values_only" in page or "verified" in page


def test_pull_goes_by_what_was_deployed_and_leaves_a_model_that_is_there_alone() -> None:
    """What it downloads is shown by tests/docker/hub."""
    command = [VLLMCTL, "--instance", INSTANCE, "pull", "owner/SmolLM2-135M-Instruct"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 1
    assert "was not put there by a pull, so it is left alone" in result.stderr
