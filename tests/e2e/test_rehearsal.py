"""What a user gets from `./box rehearse`, with the real engines and the official client."""

from __future__ import annotations

import ipaddress
import json
import math
import operator
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from rehearsal_box import (
    ENDPOINT,
    PORT,
    Deployed,
    admin,
    container_ids,
    container_name,
    docker,
    metric,
    service_status,
)

CAPITAL = "The capital of France is Paris."
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
MEMORY_LIMIT_GIB = 8


@pytest.fixture(scope="module")
def client() -> openai.OpenAI:
    """The official client; it never needs to know whether a model is loaded."""
    return openai.OpenAI(base_url=f"{ENDPOINT}/v1", api_key="unused", max_retries=0, timeout=120)


def ask(client: openai.OpenAI, model: str = "SmolLM2-135M-Instruct") -> str:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    return answer.choices[0].message.content or ""


def test_the_first_run_says_all_a_user_needs(deployed: Deployed) -> None:
    for text in (
        ENDPOINT, "SmolLM2-135M-Instruct", "all-MiniLM-L6-v2", "curl ", CAPITAL, "are alike",
        "./box status", "./box rehearse --down",
    ):  # fmt: skip
        assert text in deployed.first.output


def test_check_on_a_fresh_box_predicts_the_first_run(deployed: Deployed) -> None:
    assert deployed.predicted.changes
    assert deployed.predicted.changes == deployed.first.changes
    assert deployed.predicted.changed_tasks == deployed.first.changed_tasks


def test_the_second_run_changes_nothing(deployed: Deployed) -> None:
    before = container_ids()
    again = deployed.box.succeed("rehearse")
    assert again.changed == 0
    assert container_ids() == before
    assert CAPITAL in again.output


def test_status_shows_every_service(deployed: Deployed) -> None:
    output = deployed.box.succeed("status").output
    assert "SmolLM2-135M-Instruct" in output
    assert "all-MiniLM-L6-v2" in output
    services = json.loads(deployed.box.succeed("status", "--json").output)["services"]
    assert {service["name"] for service in services} == {"text", "embed"}


def test_chat(deployed: Deployed, client: openai.OpenAI) -> None:
    for name in ("SmolLM2-135M-Instruct", "smollm2-135m-INSTRUCT", "smol", "text"):
        assert ask(client, name) == CAPITAL


def test_streamed_chat(deployed: Deployed, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=32, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == CAPITAL
    assert len([piece for piece in pieces if piece]) > 3, "the answer came in one piece"


def cosine(left: list[float], right: list[float]) -> float:
    return float(sum(map(operator.mul, left, right)) / math.hypot(*left) / math.hypot(*right))


def test_embeddings(deployed: Deployed, client: openai.OpenAI) -> None:
    sentences = ["A cat sits on the mat.", "A kitten rests on the rug.", "Quarterly revenue grew."]
    data = client.embeddings.create(model="minilm", input=sentences).data
    cat, kitten, revenue = (item.embedding for item in data)
    assert cosine(cat, kitten) > 0.5
    assert abs(cosine(cat, revenue)) < 0.2


def test_models_are_listed_with_their_depth(deployed: Deployed, client: openai.OpenAI) -> None:
    admin("/admin/services/embed/sleep")
    models = {model.id: model.model_dump() for model in client.models.list()}
    assert models["all-MiniLM-L6-v2"]["depth"] == "sleeping"
    assert set(models) == {"SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"}


def test_an_unknown_model_is_404_and_wakes_nothing(deployed: Deployed, client: openai.OpenAI) -> None:
    admin("/admin/services/text/sleep")
    with pytest.raises(openai.NotFoundError) as error:
        ask(client, "no-such-model")
    assert error.value.code == "model_not_found"
    assert service_status("text")["depth"] == "sleeping"


def wakes() -> float:
    return metric("frontdoor_transitions_total", service="text", transition="wake")


def test_a_request_wakes_a_sleeping_engine_once(deployed: Deployed, client: openai.OpenAI) -> None:
    admin("/admin/services/text/sleep")
    assert service_status("text")["depth"] == "sleeping"
    before = wakes()
    assert ask(client) == CAPITAL
    assert service_status("text")["depth"] == "awake"
    assert wakes() == before + 1


def test_ten_requests_at_once_are_one_wake(deployed: Deployed, client: openai.OpenAI) -> None:
    admin("/admin/services/text/sleep")
    before = wakes()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: ask(client), range(10)))
    assert answers == [CAPITAL] * 10
    assert wakes() == before + 1


def test_the_router_runs_with_nothing_it_does_not_need(deployed: Deployed) -> None:
    container = json.loads(docker("inspect", container_name("router")))[0]
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert container["Config"]["User"] not in ("", "0", "root", "0:0")
    assert not any("docker.sock" in mount["Source"] for mount in container["Mounts"])


@pytest.mark.parametrize("target", ["admin", "other engine"])
def test_an_engine_reaches_neither_the_admin_surface_nor_another_engine(
    deployed: Deployed, target: str
) -> None:
    networks = json.loads(docker("inspect", container_name("text")))[0]["NetworkSettings"]["Networks"]
    (own,) = networks.values()
    others = json.loads(docker("inspect", container_name("embed")))[0]["NetworkSettings"]["Networks"]
    (other,) = others.values()
    host = str(ipaddress.ip_interface(f"{own['IPAddress']}/{own['IPPrefixLen']}").network[1])
    address = (host, PORT + 10) if target == "admin" else (other["IPAddress"], 8000)
    script = f"import socket; socket.create_connection({address!r}, timeout=3)"
    result = subprocess.run(
        ["docker", "exec", container_name("text"), "python3", "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode != 0, f"{address} can be reached from inside an engine"


def proportional_kibibytes(pid: str) -> int:
    """A process's own memory and its part of what it shares; nothing of one that ended meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(size) for size in re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE))


def test_memory_stays_within_the_limit(deployed: Deployed) -> None:
    pids = [pid for name in container_ids() for pid in docker("top", name, "-eo", "pid").split()[1:]]
    kibibytes = sum(proportional_kibibytes(pid) for pid in pids)
    # The engines' weights and caches alone are more than one.
    assert 1 < kibibytes / 1024**2 < MEMORY_LIMIT_GIB
