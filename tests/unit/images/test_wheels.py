"""The cache of wheels: found by hash, fetched with pip, errors as sentences."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import box_tools_cache as wheels
from ansible.module_utils.box_tools_files import tree_digest
from ansible.module_utils.box_tools_lock import Pin

TARGET = wheels.Target("3.11", "x86_64", 36)
NAME = "six-1.0-py3-none-any.whl"
CONTENT = b"a wheel"
PIN = Pin("six", "1.0", (hashlib.sha256(CONTENT).hexdigest(),))
VARIANT = Pin("torch", "2.13.0+cpu", ("0" * 64,))


class Pip:
    """Stands in for the pip process: answers by what it is asked for, and keeps the commands."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        code, said = self.answers.pop(0)
        if code == 0:
            (Path(command[command.index("--dest") + 1]) / NAME).write_bytes(CONTENT)
        return subprocess.CompletedProcess(command, code, "", said)


def test_a_wheel_is_taken_from_the_cache_only_if_its_hash_is_right(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    assert wheels.find([PIN, VARIANT], tmp_path) == ({PIN: tmp_path / NAME}, [VARIANT])
    (tmp_path / NAME).write_bytes(b"altered")
    assert wheels.find([PIN], tmp_path) == ({}, [PIN])
    assert wheels.find([PIN], tmp_path / "none") == ({}, [PIN])


def test_fetched_wheels_arrive_whole_and_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip((0, ""))
    monkeypatch.setattr(wheels.subprocess, "run", pip)
    wheels.fetch([PIN], tmp_path / "cache", TARGET, "")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]
    assert (tmp_path / "cache" / NAME).stat().st_mode & 0o777 == 0o644
    assert {"--require-hashes", "--no-deps", "3.11", "manylinux_2_28_x86_64"} <= set(pip.commands[0])
    assert "--extra-index-url" not in pip.commands[0]


def test_the_other_index_is_asked_only_for_a_variant_that_pip_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip((0, ""), (1, "ERROR: No matching distribution found for torch==2.13.0+cpu"), (0, ""))
    monkeypatch.setattr(wheels.subprocess, "run", pip)
    wheels.fetch([PIN, VARIANT], tmp_path, TARGET, "https://index.example/cpu")
    assert ["https://index.example/cpu" in command for command in pip.commands] == [False, False, True]


@pytest.mark.parametrize(
    "said", ["ERROR: No matching distribution found for six", "ERROR: connection refused"]
)
def test_an_ordinary_package_that_is_not_found_is_no_reason_to_look_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    pip = Pip((1, said))
    monkeypatch.setattr(wheels.subprocess, "run", pip)
    with pytest.raises(wheels.WheelError, match="package index") as error:
        wheels.fetch([PIN], tmp_path, TARGET, "https://index.example/cpu")
    assert said in str(error.value)
    assert len(pip.commands) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_pip_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.subprocess, "run", Pip((1, "/usr/bin/python3: No module named pip")))
    with pytest.raises(wheels.WheelError, match="has no pip"):
        wheels.fetch([PIN], tmp_path, TARGET, "")


def test_a_tree_is_known_by_names_content_and_executable_bits_alone(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "sub").mkdir(parents=True)
    (source / "sub/x.py").write_text("1")
    first = tree_digest(source)
    (source / "__pycache__").mkdir()
    (source / "__pycache__/x.cpython-311.pyc").write_bytes(b"code")
    assert tree_digest(source) == first
    (source / "sub/x.py").chmod(0o755)
    executable = tree_digest(source)
    (source / "sub/x.py").chmod(0o644)
    (source / "sub/x.py").rename(source / "sub/y.py")
    renamed = tree_digest(source)
    (source / "sub/y.py").write_text("2")
    assert len({first, executable, renamed, tree_digest(source)}) == 4
