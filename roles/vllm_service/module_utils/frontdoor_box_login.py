"""What a playbook works with on the box, its user and its Python, and what to say where these won't do.

Pure: the action plugin asks, this file words the question and reads the answer. On the controller only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PYTHON_NEEDED = (3, 11)
_REMEDY = (
    f"Install Python {'.'.join(map(str, PYTHON_NEEDED))} or newer on the box, or set "
    "ansible_python_interpreter (in the inventory, or with -e) to one that is there."
)


@dataclass(frozen=True)
class Login:
    """Who the playbook is on the box, and the interpreter that its modules run in.

    `version` is None where the interpreter didn't say it; `words` is the last line that it printed then.
    """

    interpreter: str
    is_root: bool
    version: tuple[int, int, int] | None = None
    words: str = ""

    @property
    def problem(self) -> str | None:
        """A sentence or two where this Python runs no module of ours, or None."""
        needed = ".".join(map(str, PYTHON_NEEDED))
        if self.version is None:
            said = f": {self.words}" if self.words else ""
            return f"{self.interpreter} doesn't run as a Python on the box{said.rstrip('.')}. {_REMEDY}"
        if self.version < PYTHON_NEEDED:
            version = ".".join(map(str, self.version))
            return (
                f"The Python on the box is too old: {self.interpreter} is Python {version}, and "
                f"vllm-frontdoor needs {needed} or newer. {_REMEDY}"
            )
        return None


def question(interpreter: str) -> str:
    """One command for a shell on the box, which any Python understands. `interpreter` is as Ansible writes it
    into a module's first line."""
    script = 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])'
    return f"id -u; {_program(interpreter)} -c '{script}'"


def read(interpreter: str, output: str, errors: str) -> Login:
    """What was printed in answer to the question."""
    user = re.search(r"^\s*([0-9]+)\s*$", output, re.MULTILINE)
    version = re.search(r"^\s*Python ([0-9]+)\.([0-9]+)\.([0-9]+)\s*$", output, re.MULTILINE)
    is_root = user is not None and user[1] == "0"
    program = _program(interpreter)
    if version is None:
        return Login(program, is_root, words=_last_line(errors))
    return Login(program, is_root, (int(version[1]), int(version[2]), int(version[3])))


def _program(interpreter: str) -> str:
    return interpreter.removeprefix("#!").strip()


def module_failure(name: str, result: Mapping[str, Any]) -> str:
    """Why a module failed: its own message or, where it died before it could say one, its last words."""
    died = "module_stdout" in result or "module_stderr" in result
    if result.get("msg") and not died:
        return str(result["msg"])
    words = (
        _last_line(str(result.get("module_stderr") or ""))
        or _of_exception(result.get("exception") if not died else None)
        or _last_line(str(result.get("module_stdout") or ""))
        or str(result.get("msg") or "")
    )
    if not words:
        return f"The module {name} failed without saying why."
    return f"The module {name} broke off on the box. Its last words: {words.rstrip('.')}."


def _of_exception(exception: Any) -> str:
    """The last line of a traceback, be it a text or what ansible-core 2.19 makes of one."""
    event = getattr(exception, "event", None)
    if event is None:
        return _last_line(str(exception or ""))
    return _last_line(event.formatted_traceback or "") or str(event.msg)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
