"""Defaults, argument specifications and the page of variables say the same, for every role."""

from __future__ import annotations

import pytest

from tests.variables.page import PAGE, ROLES, Role, is_computed, page, roles

ALL = {role.name: role for role in roles()}

# Where people may leave one out, and its absence means something that no value says.
WITHOUT_DEFAULT = {"frontdoor_bundle", "frontdoor_bundle_sha256", "frontdoor_instance", "frontdoor_network"}
WITHOUT_DEFAULT |= {"frontdoor_port_base"}
by_role = pytest.mark.parametrize("role", ALL.values(), ids=ALL)


def test_the_committed_page_is_what_the_roles_make() -> None:
    assert PAGE.read_text() == page(), "write it anew: python tests/variables/page.py"


def test_every_role_with_defaults_is_on_the_page() -> None:
    assert {path.parents[1].name for path in ROLES.glob("*/defaults/main.yml")} <= set(ALL)


@by_role
def test_every_default_is_of_a_documented_variable_and_the_reverse(role: Role) -> None:
    assert set(role.defaults) <= set(role.options)
    open_ones = {name for name, option in role.options.items() if not option.get("required")}
    assert open_ones - set(role.defaults) <= WITHOUT_DEFAULT


@by_role
def test_specified_defaults_are_the_real_ones(role: Role) -> None:
    """Where the real one is a template, words may stand for it; where none is specified, the page has it."""
    for entry in role.entries.values():
        for name, option in (entry.get("options") or {}).items():
            if "default" in option and name in role.defaults and not is_computed(role.defaults[name]):
                assert option["default"] == role.defaults[name], name


@by_role
def test_every_variable_has_a_type_and_a_description_that_ends(role: Role) -> None:
    for name, option in role.options.items():
        assert option["type"] in {"str", "int", "float", "bool", "list", "dict", "path"}, name
        described = option["description"]
        sentences = [described] if isinstance(described, str) else described
        assert sentences and sentences[-1].endswith("."), name


@by_role
def test_every_variable_has_a_row_in_its_roles_section(role: Role) -> None:
    if role.options:
        section = PAGE.read_text().split(f"\n## {role.name}\n")[1].split("\n## ")[0]
        assert [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")] == [
            *role.options
        ]
