"""Runs one of our modules as Ansible would, without Ansible's start-up time.

Usage: run_module.py NAME ARGUMENTS.json
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import ansible.module_utils
from ansible.module_utils import basic

ROLES = Path(__file__).parents[3] / "roles"
NAMES = ("box_tools", "bundle", "container_engine", "engine_image", "model_files")


def main() -> None:
    """Find the module by its name and run it."""
    ansible.module_utils.__path__.extend(str(ROLES / name / "module_utils") for name in NAMES)
    basic._ANSIBLE_ARGS = Path(sys.argv[2]).read_bytes()
    basic._ANSIBLE_PROFILE = "legacy"
    (path,) = ROLES.glob(f"*/library/{sys.argv[1]}.py")
    spec = importlib.util.spec_from_file_location(sys.argv[1], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


if __name__ == "__main__":
    main()
