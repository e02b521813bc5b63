"""The command line, run as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import pytest
from gpu_diag import cli
from gpu_diag.evidence import json_schema
from gpu_diag.weights import check, command

from .conftest import WriteSafetensors


@pytest.fixture
def model(tmp_path: Path, write_safetensors: WriteSafetensors) -> Path:
    write_safetensors(tmp_path / "model" / "model.safetensors", {"a": ("F32", [2], bytes(8))})
    return tmp_path / "model"


def test_json_is_the_evidence_document_and_nothing_else(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = tmp_path / "evidence"
    status = cli.main(["weights", "--json", "--evidence", str(evidence), str(model)])
    printed = json.loads(capsys.readouterr().out)
    assert status == 0
    jsonschema.validate(printed, json_schema())
    (written,) = (evidence / "weights").glob("*.json")
    assert json.loads(written.read_text()) == printed
    assert printed["verdict"] == "values_only"
    assert printed["details"]["model"] == str(model)
    assert list((evidence / "started").iterdir()) == []


def test_the_first_line_is_a_summary(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["weights", str(model)]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0] == (
        f"values_only: {model}: every value is finite; nobody recorded a hash to compare all files with"
    )


@pytest.mark.parametrize(
    ("content", "status", "class_"),
    [(b"\0" * 4, 2, "truncated"), (None, 3, "no_weights")],
)
def test_exit_statuses(
    tmp_path: Path, content: bytes | None, status: int, class_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    assert cli.main(["weights", str(tmp_path)]) == status
    output = capsys.readouterr().out
    assert class_ in output.splitlines()[0]
    assert "What to do: " in output


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["weights"], ["weights", "x", "--jobs", "0"]])
def test_wrong_usage_is_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 64
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["weights", "--help"], ["host", "--help"]])
def test_help_names_the_exit_statuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    assert "64 wrong usage" in " ".join(capsys.readouterr().out.split())


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_host_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["host", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


def test_the_thin_script_and_the_package_say_the_same(model: Path, role: Path) -> None:
    files = role / "files"
    script = [sys.executable, str(files / "weight_check.py"), str(model)]
    module = [sys.executable, "-m", "gpu_diag", "weights", str(model)]
    environment = {**os.environ, "PYTHONPATH": str(files), "PYTHONDONTWRITEBYTECODE": "1"}
    outputs = [
        subprocess.run(line, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
        for line in (script, module)
    ]
    assert outputs[0].splitlines()[0] == outputs[1].splitlines()[0]


def test_without_numpy_a_sentence_says_what_is_missing(model: Path, role: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(role / "files"), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-S", "-m", "gpu_diag", "weights", str(model)]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 3
    assert "needs the Python package numpy" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_evidence_that_cannot_be_written_is_a_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["weights", "--evidence", str(tmp_path / "file"), str(model)]) == 3
    assert "name one that can be written with --evidence" in capsys.readouterr().err


def test_a_fault_of_the_tool_is_not_a_verdict(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(check, "find_scales", break_down)
    assert cli.main(["weights", str(model)]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "itself is at fault (AssertionError: a bug)" in output.err
    assert "Traceback" not in output.err


def test_a_file_system_that_hangs_is_given_up(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, exits = threading.Event(), list[int]()
    monkeypatch.setattr(check, "file_states", lambda _: hung.wait())
    monkeypatch.setattr(os, "_exit", exits.append)
    cli.main(["weights", "--io-timeout", "1", str(model)])
    hung.set()
    assert exits == [3]
    assert f"the file system of {model} gave no byte for 1 s" in capsys.readouterr().out


def test_progress_has_units() -> None:
    assert command.progress_text(1_200_000_000, 70_000_000_000, 1.0) == "1.2 of 70.0 GB, 1.2 GB/s, 57 s left"
    assert command.progress_text(0, 10, 0.0) == "0.0 of 0.0 GB, 0.0 GB/s, time left unknown"
