"""Keeping evidence about GPUs valid, and the metrics made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils.gpu_diag_gpus_run as gpus_run
import ansible.module_utils.gpu_diag_metrics_file as metrics_file
import ansible.module_utils.gpu_diag_weights_run as weights_run
import pytest
from gpu_diag.hostfacts.gpu_diag_metrics import metrics
from gpu_diag.present import IDENTITY_VARIABLE, present_identity

IDENTITY: dict[str, Any] = {
    "boot_id": "one",
    "gpus": [{"uuid": "GPU-0", "serial": None, "pci_address": "0000:3d:00.0", "vbios": None}],
}


def document(**changes: object) -> dict[str, object]:
    return {
        "identity": gpus_run.identity_of(IDENTITY),
        "finished_at": "2026-08-08T10:00:00.000000Z",
        "verdict": "clean",
        "class": None,
        "details": {},
        **changes,
    }


def present(*documents: dict[str, object], marks: tuple[dict[str, object], ...] = ()) -> gpus_run.Present:
    return gpus_run.Present(gpus_run.identity_of(IDENTITY), {"p2p": documents}, marks)


MARK: dict[str, object] = {
    "boot_id": "one",
    "pci_address": "0000:3d:00.0",
    "at": "2026-08-08T11:00:00.000000Z",
    "sentence": "A fault came.",
}


def test_missing_stale_and_suspect_evidence_is_made_anew_and_valid_one_is_left() -> None:
    stale = document(identity={**gpus_run.identity_of(IDENTITY), "boot_id": "two"})
    for found, reasons in (
        (present(), ["it was not run yet"]),
        (present(document()), []),
        (present(stale), ["the machine was booted again"]),
        (present(document(), stale), []),
        (present(document(), marks=(MARK,)), ["A fault came."]),
    ):
        assert gpus_run.why_needed("p2p", found, False) == reasons
    assert gpus_run.why_needed("p2p", present(document()), True) == ["it was asked for (gpu_diag_force)"]


@pytest.mark.parametrize("verdict", ["corrupt", "hang", "inconclusive"])
def test_a_probe_that_found_a_fault_is_not_repeated_by_itself(verdict: str) -> None:
    assert gpus_run.why_needed("p2p", present(document(verdict=verdict)), False) == []


def setting(tmp_path: Path, **changes: object) -> gpus_run.Setting:
    values: dict[str, object] = {
        "docker_host": "",
        "image": "engine:1",
        "evidence": str(tmp_path / "evidence"),
        "package": "/opt/diag",
        "cpu_devices": 0,
        "force": False,
        **changes,
    }
    return gpus_run.Setting(**values)


def test_gpus_are_given_to_the_container_and_the_processor_needs_none(tmp_path: Path) -> None:
    gpus = gpus_run.command("p2p", setting(tmp_path), IDENTITY, "sha256:1")
    shares = gpus_run.command("p2p", setting(tmp_path, cpu_devices=2), IDENTITY, "sha256:1")
    assert "--gpus" in gpus and "--cpu" not in gpus
    assert "--gpus" not in shares and shares[-2:] == ["--cpu", "2"]
    for line in (gpus, shares):
        assert "--network none --read-only" in " ".join(line)


def test_the_control_arm_is_a_probe_of_its_own(tmp_path: Path) -> None:
    line = " ".join(gpus_run.command("control", setting(tmp_path), IDENTITY, "sha256:1"))
    assert "gpu_diag p2p --control --json" in line


def test_the_hosts_own_evidence_is_taken_on_the_host(tmp_path: Path) -> None:
    line = gpus_run.command("host", setting(tmp_path), IDENTITY, "")
    assert line[0] == "env" and "docker" not in line


def test_a_probe_that_could_not_run_is_a_sentence(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'gpu_diag p2p: GPU 2 has 1.0 GiB of free memory' >&2\nexit 3\n")
    docker.chmod(0o755)
    with pytest.raises(weights_run.ProbeError, match=r"GPU 2 has 1\.0 GiB of free memory"):
        gpus_run.run_probe("p2p", setting(tmp_path, docker=[str(docker)]), IDENTITY, "sha256:1")


def test_the_identity_of_the_host_is_handed_into_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IDENTITY_VARIABLE, '{"boot_id": "handed in"}')
    assert present_identity() == {"boot_id": "handed in"}


def test_metrics_of_the_newest_evidence() -> None:
    pairs = [
        {"source": 0, "destination": 1, "verdict": "clean"},
        {"source": 1, "destination": 0, "verdict": "corrupt"},
        {"source": 1, "destination": 2, "verdict": "not_applicable"},
    ]
    text = metrics(
        {
            "p2p": [document(verdict="corrupt", details={"pairs": pairs}), document()],
            "weights": [document(verdict="failed", details={"model": 'odd"name'})],
        }
    )
    lines = text.splitlines()
    assert 'gpu_diag_last_run_timestamp_seconds{probe="p2p"} 1786183200.000' in lines
    assert 'gpu_diag_verdict{probe="p2p",state="corrupt"} 1' in lines
    assert 'gpu_diag_verdict{probe="p2p",state="clean"} 0' in lines
    assert [line for line in lines if line.startswith("gpu_diag_p2p_pair_ok")] == [
        'gpu_diag_p2p_pair_ok{src="0",dst="1"} 1',
        'gpu_diag_p2p_pair_ok{src="1",dst="0"} 0',
    ]
    assert 'gpu_diag_weights_verdict{model="odd\\"name",state="failed"} 1' in lines
    for name in {line.split("{")[0] for line in lines if not line.startswith("#")}:
        assert f"# TYPE {name} gauge" in lines
    assert metrics({}) == ""


def test_the_metrics_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "gpu_diag.prom"
    assert not metrics_file.is_current(path, "a 1\n")
    metrics_file.write(path, "a 1\n")
    assert metrics_file.is_current(path, "a 1\n")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpu_diag.prom"]
