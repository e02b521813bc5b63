"""Ansible merges the roles' module_utils into one package; so do the tests."""

from __future__ import annotations

from pathlib import Path

import ansible.module_utils

_ROLES = Path(__file__).resolve().parents[3] / "roles"

ansible.module_utils.__path__.extend(
    str(_ROLES / name / "module_utils") for name in ("vllm_service", "gpu_diag")
)
