"""Download a model on the box, and show meanwhile how far it is."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

_ROLE = Path(__file__).resolve().parent.parent
_PROGRAMS = ("hub_pull.py", "hub_rules.py")
_POLL_SECONDS = 2.0
_SAY_AGAIN_SECONDS = 10.0


def progress_words(status: dict[str, Any] | None, seconds: float, started_bytes: int) -> str:
    """How far it is; the words are the module_utils' own, which a plugin can't import by Ansible's name."""
    folder = str(_ROLE / "module_utils")
    if folder not in sys.path:
        sys.path.append(folder)
    from model_files_progress import progress

    return progress(status, seconds, started_bytes)


class ActionModule(ActionBase):  # type: ignore[misc]
    """Starts the module of the box, then asks it again and again."""

    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Download; answers the outcome, or fails with the sentence of the box."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        programs = {name: (_ROLE / "files" / name).read_text(encoding="utf-8") for name in _PROGRAMS}
        arguments = {**self._task.args, "programs": programs}
        answer = self._ask("started", arguments, task_vars)
        watching = {name: arguments[name] for name in ("docker_host", "root", "name")}
        began, first, said_at, said = time.monotonic(), 0, 0.0, ""
        while not answer.get("failed") and answer.get("running"):
            time.sleep(_POLL_SECONDS)
            answer = self._ask("watched", watching, task_vars)
            status = answer.get("status")
            if status and not first:
                first = status["done_bytes"] if status["total_bytes"] else 0
            now = time.monotonic()
            words = progress_words(status, now - began, first)
            if answer.get("running") and words != said and now - said_at > _SAY_AGAIN_SECONDS:
                Display().display(f"{self._where(task_vars)} {arguments['name']}: {words}")
                said, said_at = words, now
        answer.pop("invocation", None)
        result.update(answer, changed=not answer.get("failed"))
        return result

    def _ask(self, state: str, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="model_files_hub_run",
            module_args={**arguments, "state": state},
            task_vars=task_vars,
        )
        return answer

    @staticmethod
    def _where(task_vars: dict[str, Any] | None) -> str:
        return f"[{(task_vars or {}).get('inventory_hostname', 'box')}]"
