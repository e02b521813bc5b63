"""Launchers as real processes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.standin.ports import free_port

from . import conftest
from .conftest import LAUNCHER, Start, wait_until


def launcher(*arguments: str, seconds: float = 10) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LAUNCHER), *arguments], capture_output=True, text=True, timeout=seconds
    )


def process_state(pid: int) -> str | None:
    """The letter of a process's state in /proc, None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return None


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_state_document_from_start_to_end(start: Start) -> None:
    one = start(devices=["cpu:left"], engine=["--ready-after", "0.6", "--exit-code", "5"])
    one.wait_for_phase("starting")
    one.wait_for_phase("healthy")
    state = one.state()
    assert re.fullmatch(r"[0-9a-f]{32}", state["incarnation"])
    assert state["since_seconds"] >= 0
    assert {key: state[key] for key in state if key not in ("incarnation", "since_seconds")} == {
        "schema_version": 1,
        "service": "text",
        "phase": "healthy",
        "devices": ["cpu:left"],
        "waiting_for": None,
        "child_exit": None,
        "restarts": 0,
    }
    assert one.wait_for_engine("start")[4] == f"incarnation={state['incarnation']}"
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 5


def test_other_paths_are_404(start: Start) -> None:
    one = start()
    one.wait_for_phase("healthy")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{one.state_port}/", timeout=5)
    assert refused.value.code == 404


def test_the_engine_has_a_process_group_of_its_own(start: Start) -> None:
    one = start()
    _, _, pid, group, _ = one.wait_for_engine("start")
    assert pid.removeprefix("pid=") == group.removeprefix("group=") != str(one.process.pid)


def test_launchers_that_share_a_device_start_one_after_the_other(start: Start) -> None:
    names = ["one", "two", "three"]
    launchers = [start(name, devices=["cpu:shared"], engine=["--ready-after", "0.4"]) for name in names]
    spans = []
    for running in launchers:
        running.wait_for_phase("healthy")
        stamp = {}
        for line in running.log.read_text().splitlines():
            moment, _, _, sentence = line.split(" ", 3)
            stamp[sentence] = moment
        spans.append((stamp["device cpu:shared: locked"], stamp["device cpu:shared: released"]))
        healthy_at = stamp["starting -> healthy"]
        assert stamp["device cpu:shared: locked"] < healthy_at <= stamp["device cpu:shared: released"]
    spans.sort()
    for (_, released), (locked, _) in itertools.pairwise(spans):
        assert released <= locked
    engine_starts = sorted(float(running.wait_for_engine("start")[0]) for running in launchers)
    assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(engine_starts))


def test_launchers_on_different_devices_start_side_by_side(start: Start) -> None:
    one = start("one", devices=["cpu:left"], engine=["--ready-after", "600"])
    two = start("two", devices=["cpu:right"])
    two.wait_for_phase("healthy")
    assert one.phase() == "starting"


def test_opposite_declared_orders_do_not_deadlock(start: Start) -> None:
    orders = [["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"], ["GPU-b"], ["GPU-b", "GPU-a"]]
    launchers = [
        start(f"s{n}", devices=order, engine=["--ready-after", "0.1"]) for n, order in enumerate(orders)
    ]
    for running in launchers:
        running.wait_for_phase("healthy")


def test_a_waiting_launcher_says_for_what_and_ends_at_once_on_sigterm(start: Start) -> None:
    one = start("one", devices=["cpu:shared"], engine=["--ready-after", "600"])
    one.wait_for_phase("starting")
    two = start("two", devices=["cpu:shared", "cpu:a"])
    two.wait_for_phase("waiting_for_devices")
    wait_until(lambda: two.state()["waiting_for"] == "cpu:shared", "waits for the shared device")
    sent = time.monotonic()
    two.process.send_signal(signal.SIGTERM)
    assert two.end() == 143
    assert time.monotonic() - sent < 3.0
    assert not two.engine_log.exists()


def test_a_launcher_that_dies_gives_its_devices_back(start: Start) -> None:
    one = start("one", devices=["cpu:shared"], engine=["--ready-after", "600"])
    one.wait_for_phase("starting")
    engine = int(one.wait_for_engine("start")[2].removeprefix("pid="))
    two = start("two", devices=["cpu:shared"])
    one.process.kill()
    two.wait_for_phase("healthy")
    os.kill(engine, signal.SIGTERM)


def test_signals_reach_the_engine(start: Start) -> None:
    one = start()
    one.wait_for_phase("healthy")
    names = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGTERM"]
    for count, name in enumerate(names, start=1):
        one.process.send_signal(signal.Signals[name])
        wait_until(lambda n=count: len(one.engine_lines("signal")) == n, name)  # type: ignore[misc]
    assert [line[2] for line in one.engine_lines("signal")] == names
    assert one.end() == 0


def test_an_engine_that_takes_its_time_is_not_killed_and_hears_each_signal(start: Start) -> None:
    one = start(engine=["--ignore-term"])
    one.wait_for_phase("healthy")
    engine = int(one.wait_for_engine("start")[2].removeprefix("pid="))
    for count in (1, 2):
        one.process.send_signal(signal.SIGTERM)
        wait_until(lambda n=count: len(one.engine_lines("signal")) == n, f"{count} signals")  # type: ignore[misc]
    assert one.phase() == "stopping"
    time.sleep(0.5)
    assert process_state(engine) in ("S", "R")
    os.kill(engine, signal.SIGKILL)
    assert one.end() == 137


@pytest.mark.parametrize("code", [0, 42])
def test_it_ends_with_the_engines_exit_code(start: Start, code: int) -> None:
    one = start(engine=["--exit-after", "0.2", "--exit-code", str(code)])
    assert one.end() == code


def test_unhealthy_and_healthy_again(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(
        tmp_path, monkeypatch, "HEALTH_INTERVAL_STEADY_SECONDS = 5.0", "HEALTH_INTERVAL_STEADY_SECONDS = 0.1"
    )
    sick = tmp_path / "sick"
    one = start(engine=["--toggle", str(sick)])
    one.wait_for_phase("healthy")
    sick.touch()
    one.wait_for_phase("unhealthy")
    sick.unlink()
    one.wait_for_phase("healthy")


def test_orphans_are_reaped(start: Start) -> None:
    one = start(engine=["--orphans", "5"])
    one.wait_for_phase("healthy")
    engine = int(one.wait_for_engine("start")[2].removeprefix("pid="))
    wait_until(lambda: children(one.process.pid) == [engine], "only the engine is left as a child")


def test_orphans_are_reaped_as_process_1(start: Start) -> None:
    one = start(engine=["--orphans", "5"], prefix=["unshare", "--pid", "--fork", "--kill-child"])
    one.wait_for_phase("healthy")
    (launcher_pid,) = children(one.process.pid)
    assert Path(f"/proc/{launcher_pid}/status").read_text().split("NSpid:")[1].split()[1] == "1"
    wait_until(lambda: len(children(launcher_pid)) == 1, "only the engine is left as a child")
    os.kill(launcher_pid, signal.SIGTERM)
    assert one.end() == 0


def test_a_straggler_in_the_engines_group_does_not_hold_the_launcher(start: Start) -> None:
    one = start(engine=["--straggler", "--exit-after", "0.3", "--exit-code", "7"])
    straggler = int(one.wait_for_engine("straggler")[2])
    assert one.end() == 7
    assert process_state(straggler) is None


def test_each_start_is_a_new_incarnation(start: Start) -> None:
    seen = set()
    for name in ("one", "two", "three"):
        running = start(name, engine=["--exit-after", "0.1"])
        seen.add(running.wait_for_engine("start")[4])
        assert running.end() == 0
    assert len(seen) == 3


def test_a_health_url_that_never_answers_blocks_no_signal(start: Start, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/health"
        command = [sys.executable, str(LAUNCHER), "run", "--service", "x", "--health", url]
        command += ["--state-port", "0", "--", "sleep", "60"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        while "started sleep" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.3)
        sent = time.monotonic()
        process.terminate()
        assert process.wait(timeout=10) == 143
        assert time.monotonic() - sent < 3.0  # a health request may take 5 s
        process.stderr.close()


HEALTH = ("--health", "http://127.0.0.1:1/health")


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (("--", "/no/such/program"), "launcher: command not found: /no/such/program", 127),
        (("--", "/etc/passwd"), "launcher: command cannot be executed: /etc/passwd: Permission denied", 126),
        (
            ("--device", "cpu:a", "--locks", "/no/such/folder", "--", "true"),
            "launcher: the folder of the device locks is missing: /no/such/folder (mount it, or set --locks)",
            2,
        ),
        (
            ("--device", "a/b", "--", "true"),
            "launcher: 'a/b' is not a device key: use cpu:<name> or GPU-<uuid> with --device",
            2,
        ),
        ((), "launcher: the following arguments are required: COMMAND (see --help)", 2),
    ],
)
def test_errors_are_sentences(arguments: tuple[str, ...], sentence: str, code: int) -> None:
    ended = launcher("run", "--service", "x", *HEALTH, "--state-port", "0", *arguments)
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in ended.stderr


def test_a_state_port_in_use_is_said(start: Start) -> None:
    one = start()
    one.wait_for_phase("healthy")
    port = str(one.state_port)
    ended = launcher("run", "--service", "x", *HEALTH, "--state-port", port, "--", "true")
    assert (ended.returncode, ended.stderr.strip()) == (
        2,
        f"launcher: port {port} for the launcher's state is in use (set --state-port)",
    )


def test_probe(start: Start) -> None:
    one = start(engine=["--ready-after", "600"])
    one.wait_for_phase("starting")
    one.wait_for_engine("start")
    sick = f"http://127.0.0.1:{one.port}/health"
    wait_until(lambda: "503" in launcher("probe", sick).stderr, "the engine answers")
    ended = launcher("probe", sick)
    assert (ended.returncode, ended.stderr) == (1, f"launcher: {sick} answered 503\n")
    assert launcher("probe", f"http://127.0.0.1:{one.state_port}/state").returncode == 0
    nobody = launcher("probe", f"http://127.0.0.1:{free_port()}/")
    assert nobody.returncode == 1 and "does not answer" in nobody.stderr
    nonsense = launcher("probe", "nonsense")
    assert nonsense.returncode == 1 and "Traceback" not in nonsense.stderr


def test_it_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-I", "-S", str(LAUNCHER), "--help"]
    assert subprocess.run(command, capture_output=True, timeout=10).returncode == 0


def order(one: conftest.RunningLauncher, token: str, incarnation: object) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{one.state_port}/restart",
        data=json.dumps({"incarnation": incarnation}).encode(),
        headers={"Authorization": f"Bearer {token}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wait_for_another(one: conftest.RunningLauncher, incarnation: str) -> dict[str, object]:
    wait_until(
        lambda: one.phase() == "healthy" and one.state()["incarnation"] != incarnation, one.log.read_text()
    )
    return one.state()


def test_a_restart_on_order(start: Start) -> None:
    one = start(devices=["cpu:left"], token="secret", engine=["--straggler", "--escapee"])
    one.wait_for_phase("healthy")
    before = one.state()["incarnation"]
    engine, straggler, escapee = (
        int(one.wait_for_engine(word)[2].removeprefix("pid=")) for word in ("start", "straggler", "escapee")
    )
    status, document = order(one, "secret", before)
    assert status == 202
    assert document["phase"] in ("stopping", "waiting_for_devices", "starting")
    after = wait_for_another(one, before)
    assert after["restarts"] == 1
    for pid in (engine, straggler, escapee):
        assert process_state(pid) is None, "something of the old engine is left"
    assert [line[4] for line in one.engine_lines("start")] == [
        f"incarnation={before}",
        f"incarnation={after['incarnation']}",
    ]
    assert order(one, "secret", before)[0] == 409, "the same order again ends nothing"
    assert one.log.read_text().count("device cpu:left: locked") == 2
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 0


def test_an_engine_that_ignores_the_order_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(tmp_path, monkeypatch, "RESTART_GRACE_SECONDS = 15.0", "RESTART_GRACE_SECONDS = 0.3")
    one = start(token="secret", engine=["--ignore-term"])
    one.wait_for_phase("healthy")
    before = one.state()["incarnation"]
    assert order(one, "secret", before)[0] == 202
    wait_for_another(one, before)
    one.process.kill()
    os.kill(int(one.engine_lines("start")[-1][2].removeprefix("pid=")), signal.SIGKILL)


@pytest.mark.parametrize(
    ("token", "given", "incarnation", "status", "sentence"),
    [
        ("secret", "other", None, 401, "Authorization: Bearer"),
        ("", "", None, 401, "Authorization: Bearer"),
        (None, "secret", None, 501, "takes no orders"),
        ("secret", "secret", "0" * 32, 409, "another one already"),
        ("secret", "secret", 7, 400, "the body must be"),
        ("secret", "secret", "x" * 5000, 400, "the body must be"),
    ],
)
def test_orders_that_are_refused_end_nothing(
    start: Start, token: str | None, given: str, incarnation: object, status: int, sentence: str
) -> None:
    one = start(token=token)
    one.wait_for_phase("healthy")
    before = one.state()
    wanted = before["incarnation"] if incarnation is None else incarnation
    answered, document = order(one, given, wanted)
    assert answered == status
    assert sentence in json.dumps(document)
    assert one.state()["incarnation"] == before["incarnation"]
    assert one.phase() == "healthy"


def test_sigterm_during_a_restart_ends_the_container(start: Start) -> None:
    one = start(token="secret", engine=["--ignore-term"])
    one.wait_for_phase("healthy")
    assert order(one, "secret", one.state()["incarnation"])[0] == 202
    one.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(one.engine_lines("signal")) == 2, "both signals")
    os.kill(int(one.wait_for_engine("start")[2].removeprefix("pid=")), signal.SIGKILL)
    assert one.end() == 137
    assert len(one.engine_lines("start")) == 1


def test_a_port_that_stays_closed_ends_the_engine(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(
        tmp_path, monkeypatch, "HEALTH_INTERVAL_STEADY_SECONDS = 5.0", "HEALTH_INTERVAL_STEADY_SECONDS = 0.1"
    )
    closed = tmp_path / "closed"
    one = start(engine=["--close-port", str(closed)])
    one.wait_for_phase("healthy")
    before = one.state()["incarnation"]
    engine = int(one.wait_for_engine("start")[2].removeprefix("pid="))
    closed.touch()
    one.wait_for_engine("closed")
    closed.unlink()
    wait_for_another(one, before)
    assert process_state(engine) is None


def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: str, quicker: str) -> None:
    source = LAUNCHER.read_text()
    assert constant in source
    quick = tmp_path / "quick.py"
    quick.write_text(source.replace(constant, quicker))
    monkeypatch.setattr(conftest, "LAUNCHER", quick)
