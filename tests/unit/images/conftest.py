"""Makes the roles' helpers importable by the names under which Ansible ships them to a box."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import ansible.module_utils

_ROLES = Path(__file__).resolve().parents[3] / "roles"
_NAMES = ("box_tools", "bundle", "container_engine", "engine_image", "model_files")

ansible.module_utils.__path__.extend(str(_ROLES / name / "module_utils") for name in _NAMES)
sys.path.extend(str(_ROLES / name / "library") for name in _NAMES)
importlib.invalidate_caches()
