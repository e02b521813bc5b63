"""Deciding whether a model needs the probe, and running it in a container."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import ansible.module_utils.gpu_diag_weights_run as weights_run
import pytest
from gpu_diag import cli

from .conftest import WriteSafetensors


@pytest.fixture
def model(tmp_path: Path, write_safetensors: WriteSafetensors) -> Path:
    write_safetensors(tmp_path / "models" / "tiny" / "model.safetensors", {"a": ("F32", [2], bytes(8))})
    return tmp_path / "models" / "tiny"


def setting(tmp_path: Path, **changes: object) -> weights_run.Setting:
    values: dict[str, object] = {
        "docker_host": "unix:///run/other.sock",
        "image": "engine:1",
        "evidence": str(tmp_path / "evidence"),
        "package": "/opt/diag",
        "rehash": False,
        "timeout_seconds": 10,
        "io_timeout_seconds": 5,
        **changes,
    }
    return weights_run.Setting(**values)


def reasons(tmp_path: Path, model: Path, **changes: object) -> tuple[str, ...]:
    (need,) = weights_run.needs([str(model)], setting(tmp_path, **changes))
    found: tuple[str, ...] = need.reasons
    return found


def test_a_model_is_probed_once_and_again_when_a_file_changes(tmp_path: Path, model: Path) -> None:
    assert reasons(tmp_path, model) == ("it was not probed yet",)
    assert cli.main(["weights", "--json", "--evidence", str(tmp_path / "evidence"), str(model)]) == 0
    assert reasons(tmp_path, model) == ()
    assert reasons(tmp_path, model, rehash=True) == ("all of it is to be read again (gpu_diag_rehash)",)
    os.utime(model / "model.safetensors")
    assert reasons(tmp_path, model) == ("model.safetensors was changed",)
    (model / "model.safetensors").rename(model / "other.safetensors")
    assert reasons(tmp_path, model) == ("other.safetensors is new", "model.safetensors is gone")


def test_scales_that_are_meant_so_are_allowed_by_name_and_judged_anew_when_that_changes(
    tmp_path: Path, write_safetensors: WriteSafetensors
) -> None:
    folder = tmp_path / "scaled"
    weights = {"a.weight": ("F8_E4M3", [4], bytes(4)), "a.weight_scale": ("F32", [1], bytes(4))}
    write_safetensors(folder / "model.safetensors", weights)
    line = ["weights", "--json", "--evidence", str(tmp_path / "evidence")]
    assert cli.main([*line, str(folder)]) == 2
    assert reasons(tmp_path, folder) == ()
    (reason,) = reasons(tmp_path, folder, allow=["a.weight_scale"])
    assert "gpu_diag_allow" in reason
    command = weights_run.command(str(folder), setting(tmp_path, allow=["a.weight_scale"]), "sha256:1")
    assert command[-3:] == ["--allow=a.weight_scale", "--", str(folder)]
    assert cli.main([*line, "--allow=a.weight_scale", "--", str(folder)]) == 0
    assert reasons(tmp_path, folder, allow=["a.weight_scale"]) == ()
    assert reasons(tmp_path, folder) != ()


def test_a_file_system_that_hangs_is_not_waited_for(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["weights", "--json", "--evidence", str(tmp_path / "evidence"), str(model)])
    hung = threading.Event()
    monkeypatch.setattr(weights_run, "file_states", lambda _: {str(hung.wait()): None})
    monkeypatch.setattr(weights_run, "_FILE_SYSTEM_SECONDS", 0.1)
    with pytest.raises(
        weights_run.ProbeError, match=r"did not answer within 0\.1 s: gpu_diag_models names it"
    ):
        reasons(tmp_path, model)
    hung.set()


def test_a_failed_verdict_holds_until_the_file_changes_and_a_read_error_does_not(
    tmp_path: Path, model: Path
) -> None:
    (model / "model.safetensors").write_bytes(b"short")
    assert cli.main(["weights", "--json", "--evidence", str(tmp_path / "evidence"), str(model)]) == 2
    assert reasons(tmp_path, model) == ()
    (newest,) = (tmp_path / "evidence" / "weights").glob("*.json")
    document = json.loads(newest.read_text())
    newest.write_text(json.dumps({**document, "class": "io_timeout"}))
    assert reasons(tmp_path, model) == ("the files could not be read the last time",)


def test_another_version_of_the_probe_judges_anew(tmp_path: Path, model: Path) -> None:
    cli.main(["weights", "--json", "--evidence", str(tmp_path / "evidence"), str(model)])
    (newest,) = (tmp_path / "evidence" / "weights").glob("*.json")
    document = json.loads(newest.read_text())
    document["tool"]["version"] = "0.0.1"
    newest.write_text(json.dumps(document))
    assert reasons(tmp_path, model)[0].startswith("it was made by version 0.0.1 of the probe")


def test_links_out_of_the_folder_are_mounted_under_their_own_paths(tmp_path: Path, model: Path) -> None:
    blobs = tmp_path / "elsewhere" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x").touch()
    (model / "linked.safetensors").symlink_to(blobs / "x")
    (model / "broken.safetensors").symlink_to("/nowhere/at/all")
    assert weights_run.mounts(str(model)) == [str(blobs), str(model)]


def test_the_container_has_no_network_and_can_write_only_evidence(tmp_path: Path, model: Path) -> None:
    command = weights_run.command(str(model), setting(tmp_path), "sha256:1")
    text = " ".join(command)
    assert text.startswith("docker --host unix:///run/other.sock run --rm ")
    for part in ("--network none", "--read-only", "--cap-drop ALL", "no-new-privileges:true"):
        assert part in text
    writable = [part for part in command if part.startswith("type=bind") and not part.endswith(",readonly")]
    assert writable == [f"type=bind,source={tmp_path}/evidence,target={tmp_path}/evidence"]
    assert command[-1] == str(model)


def script(path: Path, text: str) -> tuple[str]:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.mark.parametrize(
    ("docker", "sentence"),
    [
        ("echo 'Error: No such image: engine:1' >&2; exit 1", "the image engine:1 is not on this machine"),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect to the Docker daemon"),
    ],
)
def test_no_image_and_no_docker_are_sentences(tmp_path: Path, docker: str, sentence: str) -> None:
    with pytest.raises(weights_run.ProbeError, match=sentence):
        weights_run.image_id(setting(tmp_path, docker=script(tmp_path / "docker", docker)))


def test_no_docker_command_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(weights_run.ProbeError, match="is not installed"):
        weights_run.image_id(setting(tmp_path, docker=[str(tmp_path / "absent")]))


def test_a_probe_that_fails_is_told_and_its_container_is_removed(tmp_path: Path, model: Path) -> None:
    log = tmp_path / "log"
    docker = script(tmp_path / "docker", f'echo "$3" >> {log}; echo "no numpy" >&2; exit 3')
    with pytest.raises(weights_run.ProbeError, match="ended with status 3: no numpy"):
        weights_run.probe(str(model), setting(tmp_path, docker=docker), "sha256:1")
    assert log.read_text().split() == ["run", "rm"]


def test_a_model_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(weights_run.ProbeError, match="is not there: gpu_diag_models names it"):
        weights_run.probe(str(tmp_path / "absent"), setting(tmp_path), "sha256:1")
