"""Defaults, argument specifications and what the plan reads say the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from frontdoor_plan.declaration import PREFIXES, READ_VARIABLES, SERVICE_KEYS
from frontdoor_plan.instance import SHARED_FOLDERS
from plan_support import REPOSITORY, ROLES, known_variables
from vllmctl.box import NOT_INSTANCES

_OURS = ("vllm_service", "router")


def _yaml(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROLES / path).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("role", _OURS)
def test_every_default_is_documented_with_the_same_value(role: str) -> None:
    options = _yaml(f"{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    for name, value in _yaml(f"{role}/defaults/main.yml").items():
        if "{{" in str(
            value
        ):  # specifications are templated too, where another role's variable may be undefined
            assert "default" not in options[name], name
        else:
            assert options[name]["default"] == value, name


@pytest.mark.parametrize("role", _OURS)
def test_every_documented_variable_has_a_default_or_derives_one(role: str) -> None:
    options = _yaml(f"{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = set(_yaml(f"{role}/defaults/main.yml"))
    assert {name for name in options if not name.startswith("frontdoor_")} == defaults
    assert all(option["description"] for option in options.values())


def test_every_roles_variables_begin_with_a_known_prefix_and_each_prefix_has_a_role() -> None:
    """All but `frontdoor_`, which is of no one role."""
    assert [name for name in known_variables() if not name.startswith(PREFIXES)] == []
    assert {
        prefix for prefix in PREFIXES if not any(name.startswith(prefix) for name in known_variables())
    } == set()
    roles = {f"{path.parent.parent.name}_" for path in ROLES.glob("*/meta/argument_specs.yml")}
    assert set(PREFIXES) - {"frontdoor_"} == roles


def test_every_folder_beside_those_of_the_instances_is_known() -> None:
    """A fixed name in /opt/vllm-frontdoor or /var/lib/vllm-frontdoor can't be that of an instance."""
    named = re.compile(r"/(?:opt|var/lib)/vllm-frontdoor/([a-z0-9-]+)(?![a-z0-9.-])")
    suffixes = (".py", ".yml", ".j2", ".sh")
    files = [path for path in ROLES.rglob("*") if path.suffix in suffixes and path.is_file()]
    found = {name for path in files for name in named.findall(path.read_text(encoding="utf-8"))}
    examples = {"default"}
    assert found - examples == set(SHARED_FOLDERS)
    assert set(SHARED_FOLDERS) == NOT_INSTANCES


def test_every_setting_of_a_service_is_documented() -> None:
    options = _yaml("vllm_service/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    text = " ".join(options["vllm_service_services"]["description"])
    assert [key for key in SERVICE_KEYS if f"C({key})" not in text] == []


def test_every_variable_in_group_vars_is_known() -> None:
    for path in sorted((REPOSITORY / "group_vars").rglob("*.yml")):
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        ours = {name for name in found if name.startswith(PREFIXES)}
        assert ours <= known_variables(), path


def test_every_variable_that_is_read_is_documented_and_every_other_of_ours_is_not_missed() -> None:
    assert known_variables() >= READ_VARIABLES
    source = (ROLES / "vllm_service/module_utils/frontdoor_plan/declaration.py").read_text(encoding="utf-8")
    body = source[source.index("def parse(") :]
    named = set(re.findall(r'"((?:vllm_service|frontdoor|gpu_diag|model_files)_[a-z_0-9]+)"', body))
    assert named == {name for name in READ_VARIABLES if not name.startswith("router_")}
