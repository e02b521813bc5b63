"""Keeping the watcher running: as a unit, and as a plain process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ansible.module_utils.gpu_diag_watcher_run as watcher_run
import pytest


@pytest.fixture
def watcher(tmp_path: Path, role: Path) -> Iterator[watcher_run.Watcher]:
    """A watcher of a log of its own, on a machine without systemd."""
    package = shutil.copytree(role / "files", tmp_path / "diag", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kmsg").touch()
    found = watcher_run.Watcher(
        name="watch",
        python=sys.executable,
        package=str(package),
        evidence=str(tmp_path / "evidence"),
        kernel_log=str(tmp_path / "kmsg"),
        run_systemd=str(tmp_path / "no-systemd"),
    )
    yield found
    watcher_run.stop(found, check_mode=False)


def pid_of(watcher: watcher_run.Watcher) -> int:
    return int(json.loads((Path(watcher.evidence) / "watcher.process").read_text())["pid"])


def test_a_plain_process_is_started_left_alone_and_restarted(watcher: watcher_run.Watcher) -> None:
    assert watcher_run.keep(watcher, check_mode=True) == ["process watch: not running, started"]
    assert not Path(watcher.evidence).exists()
    assert watcher_run.keep(watcher, check_mode=False) == ["process watch: not running, started"]
    first = pid_of(watcher)
    assert watcher_run.keep(watcher, check_mode=False) == []
    assert pid_of(watcher) == first

    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert watcher_run.keep(watcher, check_mode=False) == ["process watch: not running, started"]
    second = pid_of(watcher)

    (Path(watcher.package) / "gpu_diag" / "exits.py").open("a").write("\n")
    assert watcher_run.keep(watcher, check_mode=False) == [
        "process watch: package or command differs, restarted"
    ]
    assert pid_of(watcher) != second
    assert watcher_run.keep(watcher, check_mode=False) == []


def test_a_plain_process_is_ended_once(watcher: watcher_run.Watcher) -> None:
    watcher_run.keep(watcher, check_mode=False)
    pid = pid_of(watcher)
    assert watcher_run.stop(watcher, check_mode=True) == ["process watch: stopped"]
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    assert watcher_run.stop(watcher, check_mode=False) == ["process watch: stopped"]
    assert os.waitpid(pid, 0)[0] == pid
    assert watcher_run.stop(watcher, check_mode=False) == []
    assert not (Path(watcher.evidence) / "watcher.process").exists()


def test_a_number_that_another_process_got_is_not_taken_for_the_watcher(watcher: watcher_run.Watcher) -> None:
    Path(watcher.evidence).mkdir()
    record = {"pid": str(os.getpid()), "started": "1", "version": watcher.version()}
    (Path(watcher.evidence) / "watcher.process").write_text(json.dumps(record))
    assert watcher_run.keep(watcher, check_mode=True) == ["process watch: not running, started"]


def test_a_watcher_that_cannot_run_is_a_sentence(watcher: watcher_run.Watcher) -> None:
    Path(watcher.kernel_log).unlink()
    with pytest.raises(watcher_run.WatcherError, match=r"did not come up: .*can't be read"):
        watcher_run.keep(watcher, check_mode=False)


SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
if [ "$1" = is-active ]; then test -e {active}; elif [ "$1" = restart ]; then touch {active}; fi
"""


def test_a_unit_is_written_enabled_and_restarted_when_it_differs(
    tmp_path: Path, watcher: watcher_run.Watcher
) -> None:
    log, active, units = tmp_path / "log", tmp_path / "active", tmp_path / "units"
    units.mkdir()
    (tmp_path / "systemctl").write_text(SYSTEMCTL.format(log=log, active=active))
    (tmp_path / "systemctl").chmod(0o755)
    unit = watcher_run.Watcher(
        name="watch",
        python=watcher.python,
        package=watcher.package,
        evidence=watcher.evidence,
        systemctl=[str(tmp_path / "systemctl")],
        units=str(units),
        run_systemd=str(units),
    )
    assert watcher_run.keep(unit, check_mode=True) == ["unit watch.service: missing, written and started"]
    assert list(units.iterdir()) == []
    assert watcher_run.keep(unit, check_mode=False) == ["unit watch.service: missing, written and started"]
    assert log.read_text().split("\n")[:3] == [
        "daemon-reload",
        "enable watch.service",
        "restart watch.service",
    ]
    assert f"watch --evidence {unit.evidence}" in (units / "watch.service").read_text()
    assert watcher_run.keep(unit, check_mode=False) == []
    active.unlink()
    assert watcher_run.keep(unit, check_mode=False) == ["unit watch.service: not running, started"]
    (units / "watch.service").write_text("altered")
    assert watcher_run.keep(unit, check_mode=False) == [
        "unit watch.service: content differs, written and restarted"
    ]

    assert watcher_run.stop(unit, check_mode=True) == ["unit watch.service: stopped and removed"]
    assert (units / "watch.service").exists()
    assert watcher_run.stop(unit, check_mode=False) == ["unit watch.service: stopped and removed"]
    assert log.read_text().split("\n")[-3:-1] == ["disable --now watch.service", "daemon-reload"]
    assert list(units.iterdir()) == []
    assert watcher_run.stop(unit, check_mode=False) == []


def test_a_unit_that_cannot_be_stopped_is_kept_and_told(tmp_path: Path, watcher: watcher_run.Watcher) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho 'Access denied' >&2; exit 4\n")
    (tmp_path / "systemctl").chmod(0o755)
    (tmp_path / "watch.service").touch()
    unit = replace(
        watcher,
        systemctl=[str(tmp_path / "systemctl")],
        units=str(tmp_path),
        run_systemd=str(tmp_path),
    )
    with pytest.raises(watcher_run.WatcherError, match="Access denied"):
        watcher_run.stop(unit, check_mode=False)
    assert (tmp_path / "watch.service").exists()
