"""Runs the converge module as Ansible would, without Ansible's start-up time.

Usage: run_module.py ARGUMENTS.json
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import ansible.module_utils
from ansible.module_utils import basic

ROLE = Path(__file__).parents[3] / "roles/vllm_service"


def main() -> None:
    for role in (ROLE, ROLE.parent / "gpu_diag"):
        ansible.module_utils.__path__.append(str(role / "module_utils"))
    basic._ANSIBLE_ARGS = Path(sys.argv[1]).read_bytes()
    basic._ANSIBLE_PROFILE = "legacy"
    path = ROLE / "library/vllm_service_converge.py"
    spec = importlib.util.spec_from_file_location("vllm_service_converge", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.main()


if __name__ == "__main__":
    main()
