"""Every documented variable of every role, checked as its role will check it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from frontdoor_arguments import can_be_wrong, check, documented, known_later
from frontdoor_plan import Refusal
from plan_support import REPOSITORY, ROLES, known_variables

DOCUMENTED = documented(ROLES)
PACKAGE = {"name": "m", "requirement": "m==1", "source": "m", "files": {}}


def _refused(name: str, value: Any) -> Refusal:
    refusal = check(name, value, DOCUMENTED[name])
    assert refusal is not None
    assert refusal.where == name
    return refusal


def test_every_documented_variable_is_there() -> None:
    assert DOCUMENTED.keys() == known_variables()


@pytest.mark.parametrize(
    ("name", "value", "why", "remedy"),
    [
        ("engine_image_source", "registri", "none of: registry, archive, build.", "one of: registry"),
        ("calibration_rounds", "abc", "It is a text; needed is a whole number.", "leave it out."),
        ("calibration_rounds", 2.5, "It is a number; needed is a whole number.", "a whole number"),
        ("calibration_step_seconds", [1], "It is a list; needed is a number.", "a number"),
        ("container_engine_install", "maybe", "It is a text; needed is true or false.", "true"),
        ("gpu_diag_probes", ["host", "gpu"], "something else than: host, integrity", "a list of: host"),
        ("model_files_packages", "abc", "a list, each entry of it a mapping with name,", "files"),
        ("model_files_packages", [{**PACKAGE, "converter": "zip"}], "one of: copy, gguf", "converter"),
        ("model_files_packages", [{"name": "m"}], "packages needs files, requirement, source", "files"),
        ("model_files_packages", [PACKAGE | {"kind": 1}], "There is no 'kind' in model_files_packages; known "
         "are converter, files, name,", "with name"),
        ("model_files_packages", [PACKAGE | {"files": "x"}], "'files' in it must be a mapping.", "with name"),
        ("model_files_packages", ["x"], "An entry of it is of another kind; needed is a list, each", "name"),
        ("model_files_packages", "", "It is empty; needed is a list, each entry of it", "with name"),
        ("engine_image_recipe", {"tag": "a", "layers": [{"repository": "b", "ref": 1}]},
         "There is no 'ref' in engine_image_recipe.layers; known are cmd, ", "tag, layers"),
        ("engine_image_recipe", {"tag": "a", "layers": "b"}, "Each entry of 'layers' in it must be", "tag"),
        ("engine_image_recipe", {"tag": "a", "layers": [{"repository": "b", "environment": 1}]},
         "'environment' in engine_image_recipe.layers must be a mapping.", "tag, layers"),
        ("engine_image_source", "", "It is empty; needed is one of: registry, archive, build.", "one of"),
        ("calibration_rounds", "", "It is empty; needed is a whole number.", "a whole number"),
        ("gpu_diag_probes", "host,weights", "It holds something else than: host,", "a list of: host"),
        ("gpu_diag_probes", {"host": 1}, "It is a mapping; needed is a list of: host,", "a list of: host"),
        ("engine_image_base", "debian", "It is a text; needed is a mapping", "image"),
        ("calibration_services", {"text": 1}, "It is a mapping; needed is a list of texts.", "texts"),
    ],
)  # fmt: skip
def test_what_a_role_will_refuse_is_refused(name: str, value: Any, why: str, remedy: str) -> None:
    refusal = _refused(name, value)
    assert why in refusal.why
    assert remedy in refusal.remedy
    assert name in refusal.what
    for sentence in (refusal.what, refusal.why, refusal.remedy):
        assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("calibration_rounds", "5"),
        ("calibration_rounds", None),
        ("calibration_services", "text,embed"),
        ("container_engine_install", "yes"),
        ("container_engine_install", 1),
        ("engine_image_source", "build"),
        ("engine_image_base", {"image": "python:3.11"}),
        ("model_files_packages", [PACKAGE]),
        ("model_files_packages", []),
        ("model_files_root", "/srv/models"),
    ],
)
def test_what_a_role_takes_passes(name: str, value: Any) -> None:
    assert check(name, value, DOCUMENTED[name]) is None


def test_a_default_in_the_documentation_is_no_value() -> None:
    """That of engine_image_recipe is a sentence, where a mapping is wanted."""
    recipe = {"tag": "a", "layers": [{"repository": "b"}]}
    assert check("engine_image_recipe", recipe, DOCUMENTED["engine_image_recipe"]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("router_api_keys", {"of": "the-secret"}),
        ("router_api_keys", ["the-secret"]),
        ("vllm_service_environment", ["the-secret"]),
        ("model_files_hub_environment", "the-secret"),
    ],
)
def test_a_secret_is_not_repeated(name: str, value: Any) -> None:
    assert "the-secret" not in str(_refused(name, value))


def test_a_secret_inside_is_not_repeated_either() -> None:
    options = {"key": {"type": "int", "no_log": True}}
    refusal = check(
        "keys", [{"key": "the-secret"}], [{"type": "list", "elements": "dict", "options": options}]
    )
    assert refusal is not None
    assert "the-secret" not in str(refusal)


def test_texts_take_every_value() -> None:
    for specifications in DOCUMENTED.values():
        if not can_be_wrong(specifications):
            assert all(
                check("x", value, specifications) is None for value in ("", "a", 1, True, ["a"], {"a": 1})
            )


@pytest.mark.parametrize(
    ("variables", "later"),
    [
        ({"a": "{{ ansible_facts.base | default('no') }}"}, True),
        ({"a": "{{ b }}", "b": {"image": "{{ c[0] }}"}, "c": ["{{ ansible_facts.base }}"]}, True),
        ({"a": ["{% if b %}x{% endif %}"], "b": "{{ hostvars['other'].x }}"}, True),
        ({"a": "{{ b }}", "b": "{{ __my_answer.stdout }}"}, True),
        ({"a": "{{ b }}", "b": "no", "c": "{{ ansible_facts.base }}"}, False),
        ({"a": "b", "b": "{{ ansible_facts.base }}"}, False),
        ({"a": "{{ b }}", "b": "{{ a }}"}, False),
        ({"a": "{{ missing }}"}, False),
        ({"a": "ansible_facts"}, False),
    ],
)
def test_what_only_a_run_brings_is_found_through_other_variables(
    variables: dict[str, Any], later: bool
) -> None:
    assert known_later("a", variables) is later


def test_every_default_that_needs_no_evaluation_passes() -> None:
    files = [*ROLES.glob("*/defaults/main.yml"), *(REPOSITORY / "group_vars").rglob("*.yml")]
    for path in files:
        for name, value in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
            if name in DOCUMENTED and "{{" not in str(value):
                assert check(name, value, DOCUMENTED[name]) is None, (path, name)
