"""Every command of vllmctl, run as the one file that the role puts on the box."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from frontdoor_plan.document import to_yaml
from vllmctl.containers import LABEL_SERVICE

from tests.contract.keys import keys_file
from tests.operating.conftest import GPU, SECONDS, Frontdoor
from tests.standin.processes import HTTP, Router, wait_until

COMMANDS = (
    *("status", "up", "sleep", "down", "pin", "unpin", "drain", "prove", "restart", "why", "events", "chat"),
    *("usage", "top", "doctor", "list", "logs", "pull", "cordon", "uncordon"),
)


@pytest.fixture(autouse=True)
def awake(frontdoor: Frontdoor) -> None:
    """Every test begins with both services awake."""
    for name in ("text", "embed"):
        if frontdoor.router.status(name)["conditions"]:
            frontdoor.router.order(f"services/{name}/prove", 60)
        frontdoor.router.order(f"services/{name}/unpin", 60)
        assert frontdoor.router.order(f"services/{name}/wake", 60).status_code == 200


def depth(frontdoor: Frontdoor, service: str) -> str:
    return str(frontdoor.router.status(service)["depth"])


def test_help_names_every_command_and_each_has_an_example(frontdoor: Frontdoor) -> None:
    overview = frontdoor.succeed("--help")
    assert frontdoor.succeed() == overview, "without a command, too"
    assert re.findall(r"^  .*\.\.\.$", overview, re.MULTILINE) == [], "every description is whole"
    for command in COMMANDS:
        assert f"\n  {command} " in overview
        assert f"Example: vllmctl {command}" in frontdoor.succeed(command, "--help")


def test_status_for_people_and_for_programs(frontdoor: Frontdoor) -> None:
    table = frontdoor.succeed("status")
    head, text, embed = table.splitlines()
    assert head.split()[:3] == ["SERVICE", "MODEL", "DEPTH"]
    assert text.split()[:3] == ["text", "Stand-In-1B", "awake"]
    assert embed.split()[:3] == ["embed", "Stand-In-Embed", "awake"]
    assert [each["name"] for each in frontdoor.json("status")["services"]] == ["text", "embed"]


def test_memory_is_shown_where_it_is_measured(frontdoor: Frontdoor) -> None:
    def lines() -> dict[str, str]:
        return {line.split()[0]: line for line in frontdoor.succeed("status").splitlines()}

    wait_until(lambda: "7.5 GiB device, 477 MiB host" in lines()["embed"], 60, "what the launcher measured")
    assert re.search(r"\d+ MiB host", lines()["text"])
    assert "MEMORY" in lines()["SERVICE"]
    top = frontdoor.succeed("top", "--interval", "0.2", "--count", "1")
    assert "7.5 GiB device" in top
    status = frontdoor.json("status")
    assert [each["device"] for each in status["device_memory"]] == ["cpu:left", GPU]
    frontdoor.embed.fault(memory_of_others=30_000_000_000)
    wait_until(lambda: frontdoor.router.device_memory(GPU)["over_plan"], 60, "more than planned")
    examined = frontdoor.run("doctor")
    assert "the plan allows 9.0 GiB now" in examined.out
    frontdoor.embed.fault(memory_of_others=0)
    wait_until(lambda: frontdoor.router.device_memory(GPU)["over_plan"] is False, 60, "as planned")


def test_status_is_shown_again_and_again(frontdoor: Frontdoor) -> None:
    shown = frontdoor.succeed("status", "--watch", "--interval", "0.2", "--count", "2")
    assert shown.count("SERVICE") == 2


@pytest.mark.parametrize("name", ["text", "TEXT-ALIAS", "stand-in-1b"])
def test_name_alias_and_model_mean_the_service(frontdoor: Frontdoor, name: str) -> None:
    assert frontdoor.succeed("sleep", name) == "text is sleeping.\n"
    assert depth(frontdoor, "text") == "sleeping"
    assert frontdoor.succeed("up", name) == "text is awake.\n"
    assert depth(frontdoor, "text") == "awake"


def test_down_takes_one_or_all_but_what_is_pinned(frontdoor: Frontdoor) -> None:
    assert frontdoor.json("down", "embed") == {"service": "embed", "depth": "offloaded", "pinned": False}
    frontdoor.succeed("up", "embed")
    assert frontdoor.succeed("pin", "embed") == "embed is pinned (awake).\n"
    assert frontdoor.succeed("down") == "text is offloaded.\n"
    assert (depth(frontdoor, "text"), depth(frontdoor, "embed")) == ("offloaded", "awake")
    assert "pinned awake" in frontdoor.fail("sleep", "embed")
    assert frontdoor.succeed("unpin", "embed") == "embed is no longer pinned (awake).\n"
    assert frontdoor.succeed("unpin", "embed") == "embed was not pinned (awake).\n"
    frontdoor.succeed("down", "all")
    assert depth(frontdoor, "embed") == "offloaded"


def test_drain_holds_and_prove_ends_it(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("restart", "text")  # a fresh engine's answer is what is compared with
    assert "text is drained; requests in flight: 0, waiting: 0." in frontdoor.succeed(
        "drain", "text", "--deadline", "5"
    )
    assert frontdoor.router.status("text")["conditions"] == ["maintenance"]
    assert frontdoor.succeed("prove", "text").startswith("text is proven; canary: matched; ")
    assert frontdoor.router.status("text")["conditions"] == []


def test_a_cordon_is_ordered_shown_and_ended(frontdoor: Frontdoor) -> None:
    """By what people call the device, and by its key."""
    assert frontdoor.succeed("status").splitlines()[1].split().count("left") == 1
    told = frontdoor.succeed("cordon", "left")
    assert told.startswith(
        "left is cordoned: nothing is woken on it. When it is well: vllmctl uncordon left."
    )
    assert told.rstrip().endswith("Awake on it, and serving: text.")
    assert "left is cordoned: nothing on it is woken; vllmctl uncordon left" in frontdoor.succeed("status")
    assert "left is cordoned: once it sleeps, it isn't woken again" in frontdoor.succeed("why", "text")
    frontdoor.succeed("sleep", "text")
    assert "can't be woken. Cordoned: left (vllmctl uncordon left)." in frontdoor.fail("up", "text")
    assert "Its device left is cordoned: it isn't woken (vllmctl unc" in frontdoor.succeed("why", "text")
    pinned = frontdoor.succeed("pin", "text")
    assert "It isn't woken before its device is allowed again: vllmctl uncordon left" in pinned
    frontdoor.succeed("unpin", "text")
    assert "is cordoned" in frontdoor.run("doctor").out
    assert frontdoor.succeed("uncordon", "CPU:left") == "CPU:left is no longer cordoned.\n"
    assert frontdoor.succeed("uncordon", "left") == "left was not cordoned.\n"
    assert frontdoor.succeed("up", "text") == "text is awake.\n"
    unknown = frontdoor.fail("cordon", "nosuch")
    assert f"There is no device 'nosuch'; there are: gpu1 ({GPU}), left (cpu:left)." in unknown


def test_restart_gives_the_engine_a_new_process(frontdoor: Frontdoor) -> None:
    before = frontdoor.router.status("text")["incarnation"]
    assert frontdoor.succeed("restart", "text") == "text is awake.\n"
    assert frontdoor.router.status("text")["incarnation"] != before


def test_a_restart_of_what_was_drained_says_that_requests_still_wait(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("drain", "text", "--deadline", "5")
    told = frontdoor.succeed("restart", "text")
    assert told.startswith(
        "text is awake.\nIt is in maintenance as before: its requests wait until vllmctl prove"
    )
    assert frontdoor.succeed("sleep", "text").startswith("text is sleeping.\nIt is in maintenance as before")
    frontdoor.succeed("prove", "text")
    assert frontdoor.succeed("up", "text") == "text is awake.\n"


def test_why_tells_reasons_and_what_happened(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("sleep", "text")
    told = frontdoor.succeed("why", "text")
    assert told.startswith("It is sleeping since ")
    assert re.search(r"operator .vllmctl, .* ordered .sleep. for text", told), told
    answer = frontdoor.json("why", "text")
    assert (answer["service"], answer["depth"]) == ("text", "sleeping")


def test_events_are_past_ones_and_with_f_what_happens(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("sleep", "text")
    assert re.search(r"Z  text +fell asleep in [\d.]+ m?s, was awake", frontdoor.succeed("events"))
    lines = frontdoor.succeed("events", "--json").splitlines()
    assert {"time", "event", "sentence"} <= json.loads(lines[-1]).keys()
    with subprocess.Popen(
        [frontdoor.program, "events", "--follow", "--json"],
        env=frontdoor.environment, stdout=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        assert following.stdout is not None
        given_up = threading.Timer(SECONDS, following.kill)
        given_up.start()
        for _ in lines:
            following.stdout.readline()
        wait_until(lambda: frontdoor.router.chat("text").status_code == 200, 30, "an answer")
        seen: list[str] = []
        while "request" not in seen:
            seen.append(json.loads(following.stdout.readline())["event"])
        given_up.cancel()
        following.terminate()


def test_chat_streams_an_answer_and_wakes_the_model(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("sleep", "text")
    answer = frontdoor.succeed("chat", "text", "Capital of France?", "--max-tokens", "7")
    assert answer == "The capital of France is Paris.\n"
    assert depth(frontdoor, "text") == "awake"
    conversation = frontdoor.succeed("chat", "text", "--max-tokens", "2", typed="One?\n\nTwo?\n")
    assert conversation == "The capital\n" * 2
    assert "can't chat" in frontdoor.fail("chat", "embed", "Hello?")
    assert "Say what to ask" in frontdoor.fail("chat", "text", " ")
    assert "the input was empty" in frontdoor.fail("chat", "text")


def test_a_chat_without_the_right_key_says_where_it_is_put(frontdoor: Frontdoor, tmp_path: Path) -> None:
    router = Router(tmp_path, {"ROUTER_API_KEYS_FILE": str(keys_file(tmp_path / "keys", "right"))})
    router.register(frontdoor.text.registry_entry())
    router.start()
    advice = "put one into VLLMCTL_API_KEY (or name another variable with --key-variable)."
    try:
        with settings_of(frontdoor, router.admin_port, router.port):
            told = frontdoor.fail("chat", "text", "Hello?")
            assert told.startswith("vllmctl: You didn't provide an API key. The router") and advice in told
            told = frontdoor.fail("chat", "text", "Hello?", VLLMCTL_API_KEY="wrong")
            assert told.startswith("vllmctl: Incorrect API key provided. The router") and advice in told
            answer = frontdoor.run("chat", "text", "Capital of France?", VLLMCTL_API_KEY="right")
            assert answer.out.startswith("The capital of France is Paris.")
            assert "API key" not in frontdoor.fail("chat", "nosuch", "Hello?")
    finally:
        router.kill()


def test_a_chat_that_breaks_off_is_a_failure(frontdoor: Frontdoor) -> None:
    frontdoor.text.fault(cut_after_chunks=2)
    try:
        outcome = frontdoor.run("chat", "text", "Capital of France?")
    finally:
        frontdoor.text.fault(cut_after_chunks=None)
    assert outcome.status == 1
    assert outcome.out.startswith("The capital")
    assert outcome.err.startswith("vllmctl: ")


def usage_of(frontdoor: Frontdoor, service: str) -> dict[str, int]:
    found = frontdoor.json("usage")["usage"]
    sums = dict.fromkeys(("requests", "failed", "prompt_tokens", "completion_tokens"), 0)
    for each in found:
        if each["service"] == service:
            sums = {key: value + each[key] for key, value in sums.items()}
    return sums


def test_usage_counts_what_engines_report(frontdoor: Frontdoor) -> None:
    before = usage_of(frontdoor, "text")
    assert frontdoor.router.chat("text", max_tokens=3).status_code == 200
    messages = {"model": "text", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    for stream in (False, True):
        body = {**messages, "stream": stream}
        assert HTTP.post(f"{frontdoor.router.url}/v1/messages", json=body, timeout=60).status_code == 200
    assert frontdoor.router.chat("text", messages="wrong").status_code == 400
    after = usage_of(frontdoor, "text")
    grown = {key: after[key] - before[key] for key in after}
    assert grown == {"requests": 4, "failed": 1, "prompt_tokens": 15, "completion_tokens": 11}
    assert "PROMPT TOKENS" in frontdoor.succeed("usage")


def test_top_shows_rates(frontdoor: Frontdoor) -> None:
    shown = frontdoor.succeed("top", "--interval", "0.3", "--count", "2")
    assert shown.count("COMPLETION TOKENS") == 2
    assert "/s" in shown


def test_doctor_says_what_to_do_and_its_status_is_nagios(frontdoor: Frontdoor) -> None:
    frontdoor.text.kill()
    try:
        frontdoor.router.wait_for("text", "stopped", 30)
        outcome = frontdoor.run("doctor")
        assert outcome.status == 2
        assert outcome.out.startswith("VLLM-FRONTDOOR CRITICAL - ")
        assert "vllmctl logs text" in outcome.out
        assert "corrupt when last probed, in an earlier boot, " in outcome.out, "the evidence and its age"
        document = json.loads(frontdoor.run("doctor", "--json").out)
        assert document["level"] == "CRITICAL"
        assert all(each["advice"] for each in document["findings"] if each["level"] != "OK")
    finally:
        frontdoor.text.start()
        frontdoor.succeed("up", "text")


def test_list_shows_models_with_sizes(frontdoor: Frontdoor) -> None:
    (model,) = frontdoor.json("list")["models"]
    assert (model["name"], model["size_bytes"]) == ("Stand-In-1B", 3_000_000)
    assert "3 MiB" in frontdoor.succeed("list")


NO_DOCKER = 'echo "it may not be used by you" >&2; exit 1'


def test_who_serves_a_model_is_known_without_docker(frontdoor: Frontdoor, tmp_path: Path) -> None:
    """From what was deployed, or else from the router: both know a service whose containers can't be seen."""
    path = with_docker(tmp_path, NO_DOCKER)
    model = frontdoor.folder / "var" / "models" / "Stand-In-1B"
    listed = frontdoor.run("list", "--json", PATH=path)
    assert [each["services"] for each in json.loads(listed.out)["models"]] == [["text"]], "the router's word"
    compose = frontdoor.root / "engines" / "compose.yml"
    compose.parent.mkdir()
    mount = {"type": "bind", "source": str(model), "target": "/models/Stand-In-1B"}
    compose.write_text(to_yaml({"services": {"other": {"volumes": [mount]}}}))
    try:
        with a_router_that_is_down(frontdoor):
            listed = frontdoor.run("list", "--json", PATH=path)
    finally:
        shutil.rmtree(compose.parent)
    assert [each["services"] for each in json.loads(listed.out)["models"]] == [["other"]]
    assert len(listed.err.splitlines()) == 1, "about verdicts, and not about who serves what"


def test_who_serves_a_model_is_a_question_mark_where_nobody_can_be_asked(
    frontdoor: Frontdoor, tmp_path: Path
) -> None:
    path = with_docker(tmp_path, NO_DOCKER)
    with a_router_that_is_down(frontdoor):
        shown = frontdoor.run("list", PATH=path)
        assert "Docker can't be asked" in frontdoor.run("doctor", PATH=path).out
    assert shown.out.splitlines()[1].split()[:5] == ["Stand-In-1B", "3", "MiB", "-", "?"]
    told = shown.err.splitlines()[-1]
    assert "Docker can't be asked: 'docker ps' failed: it may not be used by you" in told
    assert f"{frontdoor.root}/engines/compose.yml can't be read" in told


def test_logs_hands_over_to_docker(frontdoor: Frontdoor, tmp_path: Path) -> None:
    """What Docker itself prints is shown by the end-to-end test; here, what it is asked."""
    path = with_docker(tmp_path, 'echo "$@"')
    asked = frontdoor.run("logs", "-f", "20", "TEXT-ALIAS", PATH=path).out
    assert asked == "logs --tail 20 --follow vllm-frontdoor-test-text\n"
    assert frontdoor.run("logs", "router", PATH=path).out == "logs --tail 100 vllm-frontdoor-test-router\n"
    asked = frontdoor.run("logs", "--lines", "7", "text", PATH=path).out
    assert asked == "logs --tail 7 vllm-frontdoor-test-text\n"
    assert "is not [N] SERVICE" in frontdoor.fail("logs", "many", "text")


def with_docker(folder: Path, script: str) -> str:
    """A PATH on which such a shell script is the docker command."""
    docker = folder / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


# ---- bad input


def test_an_unknown_service_gets_a_suggestion(frontdoor: Frontdoor) -> None:
    assert "did you mean 'embed'?" in frontdoor.fail("why", "embd")
    assert "there are: text, embed." in frontdoor.fail("up", "zzzz")


def test_an_unknown_command_or_option_is_one_sentence(frontdoor: Frontdoor) -> None:
    assert "Did you mean 'status'?" in frontdoor.fail("sttus", status=2)
    assert "--jsn" in frontdoor.fail("status", "--jsn", status=2)
    assert "SERVICE" in frontdoor.fail("why", status=2)


def test_an_unknown_instance_names_those_that_are_here(frontdoor: Frontdoor) -> None:
    assert "with --instance: test." in frontdoor.fail("--instance", "tset", "status")


def test_a_wrong_token_is_told(frontdoor: Frontdoor) -> None:
    token = frontdoor.root / "secrets" / "admin-token"
    before = token.read_text()
    token.write_text("something else\n")
    try:
        assert "Authorization" in frontdoor.fail("sleep", "text")
        assert depth(frontdoor, "text") == "awake"
        frontdoor.succeed("status")
    finally:
        token.write_text(before)


def test_a_missing_token_is_told(frontdoor: Frontdoor) -> None:
    token = frontdoor.root / "secrets" / "admin-token"
    before = token.read_text()
    token.unlink()
    try:
        assert "deploy again" in frontdoor.fail("pin", "text")
    finally:
        token.write_text(before)


@contextmanager
def settings_of(frontdoor: Frontdoor, admin_port: int, port: int) -> Iterator[None]:
    """The instance as if its router listened there."""
    settings = frontdoor.root / "router" / "router.env"
    before = settings.read_text()
    settings.write_text(
        f"ROUTER_ADMIN_ADDRESS=127.0.0.1:{admin_port}\nROUTER_PUBLIC_ADDRESS=127.0.0.1:{port}\n"
    )
    try:
        yield
    finally:
        settings.write_text(before)


def a_router_that_is_down(frontdoor: Frontdoor) -> AbstractContextManager[None]:
    return settings_of(frontdoor, 1, 1)


def test_a_router_that_is_down_is_told(frontdoor: Frontdoor) -> None:
    with a_router_that_is_down(frontdoor):
        for words in (["status"], ["up", "text"], ["events"], ["usage"], ["top"], ["why", "text"]):
            assert "does not answer (Connection refused)" in frontdoor.fail(*words)
        outcome = frontdoor.run("doctor")
        assert outcome.status == 2
        assert "docker logs vllm-frontdoor-test-router" in outcome.out
        outcome = frontdoor.run("list")
        assert outcome.status == 0 and "Stand-In-1B" in outcome.out, (
            "what is on the disk is known all the same"
        )
        assert outcome.err.startswith("No verdicts: The router at ")


def test_logs_are_shown_without_the_router(frontdoor: Frontdoor, tmp_path: Path) -> None:
    described = {"Name": "/x", "State": {}, "Config": {"Labels": {LABEL_SERVICE: "text"}}}
    inspect = f"inspect) echo '{json.dumps([described])}' ;;"
    path = with_docker(tmp_path, f'case $1 in ps) echo x ;; {inspect} *) echo "$@" ;; esac')
    with a_router_that_is_down(frontdoor):
        asked = frontdoor.run("logs", "text", PATH=path)
        assert asked.out == "logs --tail 100 vllm-frontdoor-test-text\n"
        assert "does not answer" in frontdoor.run("logs", "text-alias", PATH=path).err


def test_an_order_that_takes_too_long_is_told(frontdoor: Frontdoor) -> None:
    frontdoor.succeed("sleep", "text")
    frontdoor.text.fault(wake_seconds=5)
    try:
        assert "not awake within 1 s" in frontdoor.fail("up", "text", "--timeout", "1")
    finally:
        frontdoor.text.fault(wake_seconds=0)


# ---- completion


def test_services_complete_in_three_shells(frontdoor: Frontdoor) -> None:
    bash = frontdoor.run(
        _VLLMCTL_COMPLETE="complete_bash", COMP_WORDS="vllmctl why te", COMP_CWORD="2"
    ).out.split()  # fmt: skip
    assert bash == ["text", "text-alias"]
    zsh = frontdoor.run(_VLLMCTL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="vllmctl why em").out
    assert '"embed"' in zsh
    fish = frontdoor.run(
        _VLLMCTL_COMPLETE="complete_fish",
        _TYPER_COMPLETE_ARGS="vllmctl why em",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    ).out
    assert "embed" in fish.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(frontdoor: Frontdoor, shell: str) -> None:
    script = frontdoor.run(_VLLMCTL_COMPLETE=f"source_{shell}").out
    assert f"_VLLMCTL_COMPLETE=complete_{shell}" in script


def test_the_shell_that_is_used_is_found(frontdoor: Frontdoor) -> None:
    """As a person would: from within bash, which then completes by what was printed."""
    script = (
        'eval "$(vllmctl --show-completion)"; COMP_WORDS=(vllmctl why emb); COMP_CWORD=2; '
        '_vllmctl_completion vllmctl; echo "${COMPREPLY[*]}"'
    )
    path = f"{frontdoor.program.parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--norc", "-c", f"{script}; true"],
        env=frontdoor.environment | {"PATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.stdout.split() == ["embed", "embed-alias"], result
