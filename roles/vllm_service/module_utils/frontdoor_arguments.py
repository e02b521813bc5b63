"""Checks values against the argument specifications of all roles, with Ansible's own validator.

A role checks its own when its turn comes, which for the last of them is after hours of downloads. The plan
checks them all first. On the controller only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError, AnsibleTemplateSyntaxError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.vault import EncryptedString
from frontdoor_plan import Refusal
from frontdoor_plan.values import kind_of, shown

Specification = Mapping[str, Any]

_KINDS = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
}
_TAKE_ANYTHING = ("str", "path", "raw")
_ABOUT_THE_WHOLE = ("type", "elements", "choices")
_PROBLEMS_SHOWN = 3
_KNOWN_LATER = re.compile(r"\{[{%].*\b(ansible_|hostvars|__)", re.DOTALL)


def documented(roles: Path) -> dict[str, tuple[Specification, ...]]:
    """Every variable that the roles document. Several roles and entries may say different things of one."""
    found: dict[str, tuple[Specification, ...]] = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in document["argument_specs"].values():
            for name, specification in (entry.get("options") or {}).items():
                others = found.get(name, ())
                found[name] = others if specification in others else (*others, specification)
    return found


def misformed(
    variables: Mapping[str, Any],
    specifications: Mapping[str, Sequence[Specification]],
    evaluate: Callable[[Any], Any],
) -> Iterator[Refusal]:
    """Values that the roles will refuse. What can't be told yet (facts, what tasks will register) is left to
    them, also where a default stands in for it now.

    `evaluate` renders the templates of a value, or raises AnsibleError.
    """
    for name in sorted(variables.keys() & specifications.keys()):
        if not can_be_wrong(specifications[name]):
            continue
        try:
            value = plain(evaluate(variables[name]))
        except AnsibleTemplateSyntaxError as error:
            yield not_evaluated(name, error)
            continue
        except AnsibleError:
            continue
        refusal = check(name, value, specifications[name])
        if refusal is not None and not _KNOWN_LATER.search(str(variables[name])):
            yield refusal


def not_evaluated(name: str, error: AnsibleError) -> Refusal:
    """The refusal of a variable whose template fails."""
    return Refusal(
        where=name,
        what=f"{name} can't be evaluated.",
        why=f"{error}",
        remedy="Correct the template, or define what it refers to.",
    )


def plain(value: Any) -> Any:
    """The value in Python's own types, without what Ansible attaches to it (tags, laziness, encryption)."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | EncryptedString):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value


def can_be_wrong(specifications: Sequence[Specification]) -> bool:
    """Whether there is a value that they refuse: Ansible makes a text of everything where one is wanted."""
    return any(
        specification.get("type", "str") not in _TAKE_ANYTHING or specification.get("choices")
        for specification in specifications
    )


def check(name: str, value: Any, specifications: Sequence[Specification]) -> Refusal | None:
    """The refusal of a value in Python's own types, or None. Nothing at all (an empty line) is left alone."""
    refusals = (_of_one(name, value, specification) for specification in specifications)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _of_one(name: str, value: Any, specification: Specification) -> Refusal | None:
    secret = _is_secret(name, specification)
    whole = {key: specification[key] for key in _ABOUT_THE_WHOLE if key in specification}
    if _problems(name, value, whole):
        why = _why(value, specification)
    else:
        # Without what is said of the variable itself: what is not set is the role's business.
        inner = {
            key: specification[key] for key in specification if key not in ("default", "required", "no_log")
        }
        problems = _problems(name, value, inner)
        if not problems:
            return None
        why = "Something in it is not of the documented form." if secret else _sentence(problems)
    return Refusal(
        where=name,
        what=f"{name} can't be used{'' if secret else f': {shown(value)}'}.",
        why=why,
        remedy=f"Write {_needed(specification)}, or leave it out.",
    )


def _problems(name: str, value: Any, specification: Specification) -> list[str]:
    validator = ArgumentSpecValidator({name: dict(specification)})
    found: list[str] = validator.validate({name: value}, validate_role_argument_spec=True).error_messages
    return found


def _sentence(problems: Sequence[str]) -> str:
    text = "; ".join(problems[:_PROBLEMS_SHOWN])
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _is_secret(name: str, specification: Specification) -> bool:
    """Environments may hold passwords, whatever is said of them."""
    options = (specification.get("options") or {}).values()
    return name.endswith("_environment") or any(each.get("no_log") for each in (specification, *options))


def _why(value: Any, specification: Specification) -> str:
    choices = specification.get("choices")
    if choices:
        listed = ", ".join(map(str, choices))
        return f"It {'holds something else than' if isinstance(value, list) else 'is none of'}: {listed}."
    return f"It is {kind_of(value)}; needed is {_needed(specification)}."


def _needed(specification: Specification) -> str:
    """What would do, in words."""
    kind = specification.get("type", "str")
    choices = specification.get("choices")
    listed = ", ".join(map(str, choices or ()))
    if kind == "list":
        return f"a list of: {listed}" if listed else f"a list{_entries(specification)}"
    if listed:
        return f"one of: {listed}"
    return f"{_KINDS.get(kind, 'a text')}{_keys(specification)}"


def _entries(specification: Specification) -> str:
    elements = specification.get("elements", "str")
    if elements in _TAKE_ANYTHING:
        return " of texts"
    return f", each entry of it {_KINDS[elements]}{_keys(specification)}"


def _keys(specification: Specification) -> str:
    options: Mapping[str, Specification] = specification.get("options") or {}
    needed = [name for name, option in options.items() if option.get("required")]
    others = [name for name in options if name not in needed]
    said = f" with {', '.join(needed)}" if needed else ""
    return f"{said} (it may have {', '.join(others)})" if others else said
