"""Says where the YAML that a person edits can't be read, before ansible-playbook is started.

    yaml_slips.py ROOT < inventories

ansible-core 2.19 says of a file of variables only that its YAML is wrong, neither the file nor the line. A
name that stands twice is a slip too: YAML keeps the last, and one of two services would be gone. So is an
inventory whose groups aren't written as Ansible wants them. `ROOT` is the folder of the playbooks; each line
of standard input is an inventory; without one, what its folder has counts. Ends with 1 if there is a slip.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

VARIABLES = ("group_vars", "host_vars")
SUFFIXES = (".yml", ".yaml")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VAULT = "$ANSIBLE_VAULT"
MERGE = "<<"
NO_SPACE = re.compile(r"\s*[A-Za-z_][A-Za-z0-9_]*:[^\s:/]")
PARTS = ("hosts", "children", "vars")
"""What a group of an inventory is made of."""


def variables_of(root: Path, inventories: list[Path]) -> set[Path]:
    """The files of variables, each once however many links lead to it."""
    folders = [path if path.is_dir() else path.parent for path in inventories] or [root]
    return {path.resolve() for folder in folders for path in _variables(folder)}


def hosts_of(inventories: list[Path]) -> set[Path]:
    """The inventories that are YAML. Without one of these endings it may be INI or a program."""
    files = [path for each in inventories for path in (each.iterdir() if each.is_dir() else [each])]
    return {path.resolve() for path in files if path.suffix in SUFFIXES and _is_read(path)}


def _variables(folder: Path) -> Iterator[Path]:
    for name in VARIABLES:
        top = (folder / name).resolve()
        for path in top.rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(top).parts)
            # Without an ending, at the top only: a group's file. Below, it may be a note.
            usual = path.suffix in SUFFIXES or (
                not path.suffix and path.parent == top and path.name != "README"
            )
            if usual and not hidden and _is_read(path):
                yield path


def _is_read(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and not path.name.endswith("~")


def slips(path: Path, is_inventory: bool) -> list[str]:
    """`LINE:COLUMN: what is wrong`, counted from 1; empty where all is well, or Ansible's to judge."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    if text.startswith(VAULT):
        return []
    try:
        # Nodes only, no values: so tags such as !vault need no meaning here.
        tree = yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return [f"{_place(mark) if mark else ''}{error.problem or error.context}{_hint(text, error)}"]
    except yaml.YAMLError as error:
        return [" ".join(str(error).split())]
    if tree is None:
        return []
    found = [*_twice(tree), *_unquoted(tree)]
    if is_inventory:
        found += _inventory(tree)
    return found


def _place(mark: yaml.Mark) -> str:
    return f"{mark.line + 1}:{mark.column + 1}: "


def _hint(text: str, error: yaml.MarkedYAMLError) -> str:
    """What people often forget, where it can be seen in the line of the slip or the one before."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ""
    lines = text.splitlines()
    for number in (mark.line, mark.line - 1):
        line = lines[number] if 0 <= number < len(lines) else ""
        if NO_SPACE.match(line):
            return f"; in line {number + 1} ('{line.strip()}') a space after the colon is missing"
    return ""


def _unquoted(tree: yaml.Node) -> Iterator[str]:
    """`name: {{ other }}`, which is a mapping to YAML."""
    for mapping in _mappings(tree):
        for _, value in mapping.value:
            if isinstance(value, yaml.MappingNode) and value.flow_style and len(value.value) == 1:
                key, _ = value.value[0]
                if isinstance(key, yaml.MappingNode) and key.flow_style:
                    yield f'{_place(value.start_mark)}a template needs quotes around it: "{{{{ ... }}}}"'


def _twice(tree: yaml.Node) -> Iterator[str]:
    """Names that stand twice in one mapping."""
    for mapping in _mappings(tree):
        yield from _twice_in(mapping)


def _mappings(tree: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping once: aliases lead to one node from several places, or back."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += reversed([value for _, value in node.value])


def _twice_in(mapping: yaml.MappingNode) -> Iterator[str]:
    first: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == MERGE:
            continue
        # 1 and "1" are two names.
        name = (key.tag, key.value)
        if name in first:
            before = f"stands in line {first[name]} already"
            yield f"{_place(key.start_mark)}'{key.value}' {before}; only one of them would count"
        first.setdefault(name, key.start_mark.line + 1)


def _inventory(tree: yaml.Node) -> Iterator[str]:
    """What is wrong with the groups; the settings of an inventory plugin have none."""
    if isinstance(tree, yaml.MappingNode) and all(key.value != "plugin" for key, _ in tree.value):
        for _, group in tree.value:
            yield from _group(group)


def _group(group: yaml.Node) -> Iterator[str]:
    if not isinstance(group, yaml.MappingNode):
        return
    for key, value in group.value:
        if key.value == MERGE:
            continue
        if key.value not in PARTS and isinstance(value, (yaml.MappingNode, yaml.SequenceNode)):
            yield f"{_place(key.start_mark)}a group has no '{key.value}', only {', '.join(PARTS)}"
        elif isinstance(value, yaml.SequenceNode):
            yield (
                f"{_place(value.start_mark)}'{key.value}' is a list; write each name without a hyphen before "
                "it, and with a colon after it"
            )
        elif key.value == "children" and isinstance(value, yaml.MappingNode):
            for _, child in value.value:
                yield from _group(child)


def shown(path: Path) -> str:
    """Relative to the current folder, where it is in it."""
    here = Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def main(root: str, lines: list[str]) -> int:
    """Print a line for each slip; 1 if there is one."""
    inventories = [path for line in lines if "," not in line and (path := Path(line)).exists()]
    hosts = hosts_of(inventories)
    files = sorted(variables_of(Path(root), inventories) | hosts)
    told = [f"{shown(path)}:{slip}" for path in files for slip in slips(path, path in hosts)]
    for line in told:
        print(f"box: {line}.", file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read().splitlines()))
