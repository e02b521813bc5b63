"""Says where the YAML that a person edits can't be read, before ansible-playbook is started.

    yaml_slips.py ROOT < inventories

ansible-core 2.19 says of a file of variables only that its YAML is wrong, neither the file nor the line.
`ROOT` is the folder of the playbooks; each line of standard input is an inventory. Ends with 1 if a file
can't be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

VARIABLES = ("group_vars", "host_vars")
SUFFIXES = (".yml", ".yaml")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VAULT = "$ANSIBLE_VAULT"


def files_of(root: Path, inventories: list[Path]) -> list[Path]:
    """What Ansible reads of a person's declaration, each file once however many links lead to it."""
    found = list(_variables(root))
    for inventory in inventories:
        folder = inventory if inventory.is_dir() else inventory.parent
        found += _variables(folder)
        # An inventory without one of these endings may be INI or a program.
        candidates = inventory.iterdir() if inventory.is_dir() else [inventory]
        found += [path for path in candidates if path.suffix in SUFFIXES and path.is_file()]
    return sorted({path.resolve() for path in found})


def _variables(folder: Path) -> Iterator[Path]:
    for name in VARIABLES:
        for path in (folder / name).resolve().rglob("*"):
            if path.suffix in (*SUFFIXES, "") and not path.name.startswith(".") and path.is_file():
                yield path


def slip(path: Path) -> str | None:
    """`LINE:COLUMN: what is wrong`, counted from 1; None where it can be read, or is Ansible's to judge."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if text.startswith(VAULT):
        return None
    try:
        # Nodes only, no values: so tags such as !vault need no meaning here.
        yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}: " if mark else ""
        return f"{place}{error.problem or error.context}"
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    return None


def shown(path: Path) -> str:
    """Relative to the current folder, where it is in it."""
    here = Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def main(root: str, lines: list[str]) -> int:
    """Print a line for each file that can't be read; 1 if there is one."""
    inventories = [path for line in lines if "," not in line and (path := Path(line)).exists()]
    slips = [(path, found) for path in files_of(Path(root), inventories) if (found := slip(path))]
    for path, found in slips:
        print(f"box: {shown(path)}:{found}.", file=sys.stderr)
    return 1 if slips else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read().splitlines()))
