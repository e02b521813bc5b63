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
_TEMPLATE = re.compile(r"\{[{%].*", re.DOTALL)
_NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*")
_KNOWN_LATER = ("ansible_", "hostvars", "__")
_CHOICES = re.compile(
    r"value of (?P<key>\w+) must be (?:one of|one or more of): (?P<choices>.*?)"
    r"(?:, got: |\. Got no match for: ).*?(?: found in (?P<place>[\w >-]+))?",
    re.DOTALL,
)
_KIND = re.compile(
    r"(?P<of>argument|Elements value for option) '(?P<key>\w+)'(?: is of type \w+)?"
    r"(?: found in '(?P<place>[^']+)'\.?)?(?: is of type \w+)? and we were unable to convert to "
    r"(?P<kind>\w+): .*",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"(?P<places>.+)\. Supported parameters include: (?P<known>.*?)\.?", re.DOTALL)
_MISSING = re.compile(r"missing required arguments: (?P<keys>.*) found in (?P<place>.*)", re.DOTALL)
_SAID_BETTER = "dictionary requested, could not parse"


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
        if refusal is not None and not known_later(name, variables):
            yield refusal


def known_later(name: str, variables: Mapping[str, Any]) -> bool:
    """Whether the template of a variable, or of one that it is made from, reads what only a run brings."""
    seen = {name}
    waiting = [name]
    while waiting:
        value = variables[waiting.pop()]
        template = None if isinstance(value, EncryptedString) else _TEMPLATE.search(str(value))
        names = set(_NAME.findall(template[0])) if template else set()
        if any(each.startswith(_KNOWN_LATER) for each in names):
            return True
        further = (names & variables.keys()) - seen
        seen |= further
        waiting.extend(further)
    return False


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
    telling = [problem for problem in problems if not problem.startswith(_SAID_BETTER)] or problems
    return " ".join(f"{_in_our_words(problem).rstrip('.')}." for problem in telling[:_PROBLEMS_SHOWN])


def _in_our_words(problem: str) -> str:
    """What Ansible's validator (2.19) says; anything that it words in another way stays as it is."""
    if match := _UNKNOWN.fullmatch(problem):
        unknown = (each.rpartition(".") for each in match["places"].split(", "))
        said = " and ".join(f"no '{key}' in {place}" for place, _, key in unknown)
        return f"There is {said}; known are {match['known']}"
    if match := _MISSING.fullmatch(problem):
        return f"{_place(match['place'])} needs {match['keys']} as well"
    if match := _CHOICES.fullmatch(problem):
        return f"'{match['key']}' in {_inside(match['place'])} must be one of: {match['choices']}"
    if match := _KIND.fullmatch(problem):
        subject = f"'{match['key']}' in {_inside(match['place'])}"
        entry = "" if match["of"] == "argument" else "Each entry of "
        return f"{entry}{subject} must be {_KINDS.get(match['kind'], 'a text')}"
    return problem


def _place(said: str) -> str:
    """`a -> b` as people write it."""
    return said.replace(" -> ", ".")


def _inside(said: str | None) -> str:
    """The variable itself is named already."""
    return _place(said) if said and " -> " in said else "it"


def _is_secret(name: str, specification: Specification) -> bool:
    """Environments may hold passwords, whatever is said of them."""
    options = (specification.get("options") or {}).values()
    return name.endswith("_environment") or any(each.get("no_log") for each in (specification, *options))


def _why(value: Any, specification: Specification) -> str:
    needed = _needed(specification)
    if isinstance(value, str) and not value.strip():
        return f"It is empty; needed is {needed}."
    listed = ", ".join(map(str, specification.get("choices") or ()))
    if specification.get("type") != "list":
        return f"It is none of: {listed}." if listed else f"It is {kind_of(value)}; needed is {needed}."
    if listed and isinstance(value, list | str):  # Ansible splits a text at its commas
        return f"It holds something else than: {listed}."
    if isinstance(value, list):
        return f"An entry of it is of another kind; needed is {needed}."
    return f"It is {kind_of(value)}; needed is {needed}."


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
