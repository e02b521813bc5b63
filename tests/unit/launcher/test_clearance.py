"""The host's word for launchers: from evidence of this boot, or from a test that is bounded."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from evidence_support import control, integrity, p2p
from gpu_diag.hostfacts.gpu_diag_box import Question, discover
from gpu_diag.identity import identity_of
from plan_support import REPOSITORY, box

FILE = REPOSITORY / "roles" / "vllm_service" / "files" / "clearance.py"
_SPEC = importlib.util.spec_from_file_location("clearance", FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
clearance = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(clearance)
BOX = box("three_gpus")
BOOT = "22222222-0000-4000-8000-000000000001"


def test_each_gpu_is_cleared_by_itself() -> None:
    found = clearance.refused_devices(integrity(BOX, {1: "corrupt"}), "")
    assert list(found) == [BOX["gpus"][1]["uuid"]]
    assert clearance.refused_devices(integrity(BOX), "") == {}


def test_without_a_test_nothing_is_cleared() -> None:
    assert clearance.refused_devices(None, "it did not end in time") == {"all": "it did not end in time"}
    assert "names no device" in clearance.refused_devices(integrity(BOX) | {"details": {}}, "")["all"]


@pytest.mark.parametrize(
    ("document", "clean"),
    [
        (p2p(BOX), True),
        (p2p(BOX, ((0, 1),)), True),
        (control(BOX), True),
        (p2p(BOX, verdict="inconclusive", class_="control_failed"), False),
        (p2p(BOX, control_words=0), False),
        (control(BOX, "inconclusive"), False),
    ],
)
def test_split_models_need_a_clean_control_arm(document: dict[str, Any], clean: bool) -> None:
    assert (clearance.control_problem(document, "") is None) is clean


class _Host:
    """A host with its boot id, its evidence and a docker command that answers with a document."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "boot_id").write_text(BOOT + "\n")
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        self.facts = {**discover(Question()), "boot_id": BOOT}
        self.config = {
            "instance": "t",
            "docker_host": "unix:///nowhere",
            "image": "sha256:0",
            "package": str(REPOSITORY / "roles" / "gpu_diag" / "files"),
            "evidence": str(folder / "evidence"),
            "output": str(folder / "clearance.json"),
            "boot_id_file": str(folder / "boot_id"),
            "cpu_devices": 2,
            "control": False,
        }

    def docker(self, script: str) -> None:
        path = self.folder / "bin" / "docker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def keep(self, kind: str, document: dict[str, Any]) -> None:
        folder = self.folder / "evidence" / kind
        folder.mkdir(parents=True)
        (folder / "20260812T093000.000000Z-00000001.json").write_text(json.dumps(document))

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.config))
        status = clearance.main(["--config", str(config), *arguments])
        output = self.folder / "clearance.json"
        return status, json.loads(output.read_text()) if output.exists() else {}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Host:
    return _Host(tmp_path, monkeypatch)


def _cpu_integrity(host: _Host, **changes: Any) -> dict[str, Any]:
    return integrity({**host.facts, "gpus": []}, **changes)


def test_evidence_of_this_boot_clears_without_a_test(host: _Host) -> None:
    host.docker("echo 'nobody should ask docker' >&2; exit 1")
    host.keep("integrity", _cpu_integrity(host))
    assert host.run() == (0, {"schema_version": 1, "boot_id": BOOT, "refused": {}, "control": None})


def test_after_a_reboot_the_test_is_run_again(host: _Host) -> None:
    host.keep("integrity", _cpu_integrity(host, boot_id="the boot before"))
    host.docker(f"cat <<'DOCUMENT'\n{json.dumps(_cpu_integrity(host))}\nDOCUMENT")
    status, document = host.run()
    assert status == 0
    assert document["boot_id"] == BOOT


def test_a_test_that_fails_clears_nothing(host: _Host) -> None:
    host.docker(f"cat <<'DOCUMENT'\n{json.dumps(_cpu_integrity(host, verdicts={0: 'corrupt'}))}\nDOCUMENT")
    status, document = host.run()
    assert status == 1
    assert "says corrupt" in document["refused"]["cpu"]


def test_a_test_that_does_not_end_clears_nothing(host: _Host) -> None:
    host.docker('[ "$3" = run ] && exec sleep 600; exit 0')
    status, document = host.run("--limit", "1")
    assert status == 1
    assert "did not end in time" in document["refused"]["all"]


def test_a_docker_that_does_not_answer_clears_nothing(host: _Host) -> None:
    host.docker("echo 'Cannot connect to the daemon' >&2; exit 1")
    status, document = host.run()
    assert status == 1
    assert "Cannot connect to the daemon" in document["refused"]["all"]


def test_split_models_wait_for_the_control_arm_as_well(host: _Host) -> None:
    host.config["control"] = True
    host.keep("integrity", _cpu_integrity(host))
    host.docker("exit 1")
    status, document = host.run()
    assert (status, document["refused"]) == (1, {})
    assert "control test could not be run" in document["control"]


def test_a_configuration_that_is_not_there_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clearance.main(["--config", str(tmp_path / "none.json")]) == 3
    assert "can't be given" in capsys.readouterr().err


def test_the_identity_is_the_probes_own(host: _Host) -> None:
    identity, _ = clearance.present(host.config)
    assert identity == identity_of(host.facts)
