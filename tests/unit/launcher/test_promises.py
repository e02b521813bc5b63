"""What a launcher waits for before its engine may start, and the staged path that it imposes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Start, wait_until
from .test_decisions import load

launcher = load()
BOOT = "11111111-0000-4000-8000-000000000001"
OTHER_BOOT = "11111111-0000-4000-8000-000000000002"


def _document(**changes: Any) -> dict[str, Any]:
    return {"schema_version": 1, "boot_id": BOOT, "refused": {}, "control": None} | changes


@pytest.mark.parametrize(
    ("document", "devices", "part"),
    [
        (None, ("GPU-a",), "nobody has tested"),
        ([], ("GPU-a",), "nobody has tested"),
        (_document(schema_version=2), ("GPU-a",), "nobody has tested"),
        (_document(boot_id=OTHER_BOOT), ("GPU-a",), "not tested in this boot"),
        (_document(refused={"GPU-a": "says corrupt"}), ("GPU-a",), "says corrupt"),
        (_document(refused={"all": "no end"}), ("GPU-a",), "no end"),
        (_document(refused={"cpu": "says corrupt"}), ("cpu:left",), "says corrupt"),
        (_document(refused=None), ("GPU-a",), "can't be read"),
        (_document(control="failed"), ("GPU-a", "GPU-b"), "failed"),
    ],
)
def test_what_is_not_cleared_stays_down(document: object, devices: tuple[str, ...], part: str) -> None:
    problem = launcher.clearance_problem(document, BOOT, devices)
    assert problem is not None
    assert part in problem


@pytest.mark.parametrize(
    ("document", "devices"),
    [
        (_document(), ("GPU-a", "GPU-b")),
        (_document(refused={"GPU-b": "says corrupt"}), ("GPU-a",)),
        (_document(control="failed"), ("GPU-a",)),
    ],
)
def test_what_does_not_concern_an_engine_does_not_stop_it(document: object, devices: tuple[str, ...]) -> None:
    assert launcher.clearance_problem(document, BOOT, devices) is None


def test_the_imposed_staged_path_wins_over_what_was_planned() -> None:
    command, environment = launcher.staged(["serve", "--x"], {"NCCL_P2P_DISABLE": "0", "A": "1"})
    assert command == ["serve", "--x", "--disable-custom-all-reduce"]
    assert environment["NCCL_P2P_DISABLE"] == "1"
    assert environment["A"] == "1"
    assert launcher.staged(command, environment) == (command, environment)


def _promises(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    boot, clearance = tmp_path / "boot_id", tmp_path / "clearance.json"
    boot.write_text(f"{BOOT}\n")
    return boot, clearance, ["--clearance", str(clearance), "--boot-id-file", str(boot)]


def _waits(running: Any, part: str) -> None:
    def told() -> bool:
        try:
            return part in str(running.state()["waiting_for"])
        except OSError:
            return False

    wait_until(told, f"{part}; {running.log.read_text()}")


def test_an_engine_waits_for_the_clearance_of_its_boot(start: Start, tmp_path: Path) -> None:
    boot, clearance, arguments = _promises(tmp_path)
    clearance.write_text(json.dumps(_document(boot_id=OTHER_BOOT)))
    one = start(devices=["cpu:left"], promises=arguments)
    _waits(one, "not tested in this boot")
    assert one.phase() == "waiting_for_devices"
    assert one.engine_lines("start") == []
    clearance.write_text(json.dumps(_document()))
    one.wait_for_phase("healthy")
    assert boot.read_text().strip() == BOOT


def test_an_engine_waits_for_its_models_mount(start: Start, tmp_path: Path) -> None:
    _, clearance, arguments = _promises(tmp_path)
    clearance.write_text(json.dumps(_document()))
    model = tmp_path / "model"
    model.mkdir()
    one = start(devices=["cpu:left"], promises=[*arguments, "--model", str(model)])
    _waits(one, "is empty")
    assert one.engine_lines("start") == []
    (model / "config.json").write_text("{}")
    one.wait_for_phase("healthy")


def test_an_engine_waits_for_gpus_that_the_driver_does_not_show(start: Start, tmp_path: Path) -> None:
    _, clearance, arguments = _promises(tmp_path)
    clearance.write_text(json.dumps(_document()))
    one = start(devices=["GPU-nowhere"], promises=[*arguments, "--visible-gpus"])
    _waits(one, "devices: ")
    assert one.engine_lines("start") == []


def test_a_waiting_engine_holds_no_lock(start: Start, tmp_path: Path) -> None:
    _, clearance, arguments = _promises(tmp_path)
    clearance.write_text(json.dumps(_document(refused={"cpu:left": "says corrupt"})))
    waiting = start("waiting", devices=["cpu:left"], promises=arguments)
    _waits(waiting, "says corrupt")
    start("other", devices=["cpu:left"]).wait_for_phase("healthy")


@pytest.mark.parametrize(("boot", "imposed"), [(BOOT, False), (OTHER_BOOT, True)])
def test_in_another_boot_than_the_evidences_the_staged_path_is_imposed(
    start: Start, tmp_path: Path, boot: str, imposed: bool
) -> None:
    _, clearance, arguments = _promises(tmp_path)
    clearance.write_text(json.dumps(_document()))
    one = start(devices=["cpu:left"], promises=[*arguments, "--peer-path-boot", boot])
    one.wait_for_phase("healthy") if not imposed else _waits_for_the_log(one)
    assert ("the staged path is imposed" in one.log.read_text()) is imposed


def _waits_for_the_log(running: Any) -> None:
    wait_until(lambda: "the staged path is imposed" in running.log.read_text(), running.log.read_text())
