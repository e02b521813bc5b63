"""Read the role's package gpu_diag and hand it to the module of the same name, in one step for all files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

_FILES = Path(__file__).resolve().parent.parent / "files"
_CARRIED_SUFFIXES = (".py", ".json")


def package_files() -> dict[str, str]:
    """The package and its scripts: contents by path relative to the role's ``files``."""
    paths = sorted(path for path in _FILES.rglob("*") if path.suffix in _CARRIED_SUFFIXES and path.is_file())
    return {str(path.relative_to(_FILES)): path.read_text() for path in paths}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs on the controller."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Add the files to the task's arguments and run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = {**self._task.args, "files": package_files()}
        result.update(
            self._execute_module(module_name="gpu_diag_package", module_args=arguments, task_vars=task_vars)
        )
        result.pop("invocation", None)  # the files would fill the log
        return result
