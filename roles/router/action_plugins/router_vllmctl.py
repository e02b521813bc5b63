"""Make vllmctl, one file of the package and its locked wheels, and put it onto the box."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase

_SOURCES = Path(__file__).resolve().parent.parent / "files"
sys.path.insert(0, str(_SOURCES))

from vllmctl_bundle import BundleError, bundle  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]
    """Arguments: `dest`, the file on the box; `wheels`, paths on the controller (none: not fetched yet)."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare, and copy what differs; `changes` says what was, or would be, done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        dest, wheels = str(self._task.args["dest"]), [Path(path) for path in self._task.args["wheels"]]
        before = self._execute_module(
            module_name="ansible.builtin.stat", module_args={"path": dest}, task_vars=task_vars
        )
        if before.get("failed"):
            return {**result, **before}
        verb = "replaced" if before["stat"]["exists"] else "created"
        if not wheels:  # check mode, which fetches nothing: it can't be compared
            return {**result, "changed": True, "changes": [f"file {dest}: {verb}"]}
        try:
            content = bundle(_SOURCES / "vllmctl", wheels)
        except BundleError as error:
            return {**result, "failed": True, "msg": str(error)}
        with tempfile.NamedTemporaryFile(dir=constants.DEFAULT_LOCAL_TMP, prefix="vllmctl-") as local:
            local.write(content)
            local.flush()
            copied = self._copy(local.name, dest, task_vars)
        changes = [f"file {dest}: {verb}"] if copied.get("changed") else []
        kept: dict[str, Any] = {key: copied[key] for key in ("failed", "msg", "changed") if key in copied}
        return {**result, **kept, "changes": changes}

    def _copy(self, source: str, dest: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        task = self._task.copy()
        task.args = {"src": source, "dest": dest, "owner": "root", "group": "root", "mode": "0755"}
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        # A file full of compressed bytes says nothing in a diff.
        task.diff = False
        answer: dict[str, Any] = copy.run(task_vars=task_vars)
        return answer
