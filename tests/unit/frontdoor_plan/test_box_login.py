from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from frontdoor_box_login import Login, module_failure, question, read


def test_a_shell_answers_the_question() -> None:
    asked = subprocess.run(
        ["/bin/sh", "-c", question(f"#!{sys.executable}")], capture_output=True, text=True, check=True
    )
    login = read(f"#!{sys.executable}", asked.stdout, asked.stderr)
    assert login.version == sys.version_info[:3]
    assert login.interpreter == sys.executable
    assert login.problem is None


@pytest.mark.parametrize(
    ("output", "is_root", "version"),
    [
        ("0\nPython 3.11.2\n", True, (3, 11, 2)),
        ("1000\r\nPython 3.13.0\r\n", False, (3, 13, 0)),
        ("Welcome to box 0 of 7\n0\nPython 2.7.18\n", True, (2, 7, 18)),
        ("0\n", True, None),
        ("", False, None),
        ("root\nPython\n", False, None),
    ],
)
def test_the_answer_is_read_among_other_words(output: str, is_root: bool, version: Any) -> None:
    login = read("#!/usr/bin/python3", output, "")
    assert (login.is_root, login.version) == (is_root, version)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 20, 1), (4, 0, 0)])
def test_a_python_from_3_11_on_will_do(version: tuple[int, int, int]) -> None:
    assert Login("/usr/bin/python3", True, version).problem is None


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 10, 99)])
def test_an_older_one_is_named_with_what_to_do(version: tuple[int, int, int]) -> None:
    problem = Login("/usr/bin/python3", True, version).problem or ""
    assert f"/usr/bin/python3 is Python {'.'.join(map(str, version))}" in problem
    assert "Install Python 3.11 or newer" in problem
    assert "ansible_python_interpreter" in problem


def test_what_is_no_python_is_quoted() -> None:
    login = read("#!/no/python", "0\n", "sh: 1: /no/python: not found\n\n")
    assert (login.problem or "").startswith(
        "/no/python doesn't run as a Python on the box: sh: 1: /no/python: not found. Install"
    )
    assert (read("#!/no/python", "0\n", "").problem or "").startswith(
        "/no/python doesn't run as a Python on the box. Install"
    )


_NO_JSON = "Module result deserialization failed: No start of json char found"
_TRACEBACK = "Traceback (most recent call last):\n  File x\nImportError: cannot import name 'UTC'\n"


def _captured(traceback: str | None) -> Any:
    """As ansible-core 2.19 hands an exception on."""
    return SimpleNamespace(event=SimpleNamespace(msg="cannot import name", formatted_traceback=traceback))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "Docker doesn't answer."}, "Docker doesn't answer."),
        ({"msg": "Docker doesn't answer.", "exception": _TRACEBACK}, "Docker doesn't answer."),
        ({"msg": _NO_JSON, "module_stdout": "", "module_stderr": "a\nKilled\n\n"}, "Its last words: Killed."),
        ({"msg": _NO_JSON, "module_stdout": "Killed\n", "module_stderr": ""}, "Its last words: Killed."),
        ({"msg": _NO_JSON, "module_stdout": "", "module_stderr": ""}, f"Its last words: {_NO_JSON}."),
        ({"exception": _TRACEBACK}, "Its last words: ImportError: cannot import name 'UTC'."),
        ({"exception": _captured(_TRACEBACK)}, "Its last words: ImportError: cannot import name 'UTC'."),
        ({"exception": _captured(None)}, "Its last words: cannot import name."),
        ({}, "The module m failed without saying why."),
    ],
)
def test_a_module_that_died_is_quoted(result: dict[str, Any], said: str) -> None:
    assert module_failure("m", {"failed": True, **result}).endswith(said)
