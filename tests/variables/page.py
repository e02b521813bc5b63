"""The page of all variables: what the roles' argument specifications say, with the roles' own defaults.

`python tests/variables/page.py` writes it; a unit test holds the committed page to what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "variables.md"
ROLES = REPOSITORY / "roles"
LONGEST_DEFAULT = 90
_MARKUP = re.compile(r"\b[COVE]\(([^()]*)\)")

Document = dict[str, Any]


@dataclass(frozen=True)
class Role:
    """A role's variables as specified, entry by entry, and its defaults as they are."""

    name: str
    entries: Mapping[str, Document]
    defaults: Document

    @property
    def options(self) -> dict[str, Document]:
        """Every variable once, as the first entry that has it says; C(main) comes first."""
        found: dict[str, Document] = {}
        for entry in self.entries.values():
            for name, option in (entry.get("options") or {}).items():
                found.setdefault(name, option)
        return found


def roles() -> Iterator[Role]:
    """All roles that have variables, by name."""
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text())["argument_specs"]
        defaults = path.parents[1] / "defaults" / "main.yml"
        found = yaml.safe_load(defaults.read_text()) if defaults.exists() else None
        yield Role(path.parents[1].name, entries, found or {})


def is_computed(value: object) -> bool:
    """Whether a default is a template, which has no value before a play."""
    return "{{" in str(value)


def page() -> str:
    """The page."""
    lines = [
        "# Variables",
        "",
        "All variables of the roles, for the inventory's `group_vars`. This page is generated from the",
        "roles' `meta/argument_specs.yml` and `defaults/main.yml` by `python tests/variables/page.py`.",
    ]
    for role in roles():
        if role.options:
            lines += ["", f"## {role.name}", "", *_table(role)]
    return "\n".join(lines) + "\n"


def _table(role: Role) -> Iterator[str]:
    yield f"{_text(role.entries['main'].get('short_description', ''))}."
    yield ""
    yield "| variable | type | default | description |"
    yield "| --- | --- | --- | --- |"
    for name, option in role.options.items():
        cells = (f"`{name}`", _type(option), _default(role, name, option), _description(option))
        yield f"| {' | '.join(cells)} |"


def _type(option: Document) -> str:
    elements = option.get("elements")
    return f"{option['type']} of {elements}" if elements else str(option["type"])


def _default(role: Role, name: str, option: Document) -> str:
    if option.get("required"):
        return "required"
    value, specified = role.defaults.get(name, option.get("default")), option.get("default")
    if value is None:
        return "none"
    if is_computed(value):
        # Words say more than a template, and an internal variable in one says nothing.
        value = specified if specified is not None and not is_computed(specified) else value
        if "{{ __" in str(value):
            return "computed"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not text:
        return "empty"
    return _code(text) if len(text) <= LONGEST_DEFAULT else f"see `roles/{role.name}/defaults/main.yml`"


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`".replace("|", "\\|")


def _description(option: Document) -> str:
    described = option["description"]
    sentences = [described] if isinstance(described, str) else described
    text = " ".join(_text(sentence) for sentence in sentences)
    choices = option.get("choices")
    return f"{text} One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else text


def _text(text: str) -> str:
    return _MARKUP.sub(r"`\1`", " ".join(text.split())).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
