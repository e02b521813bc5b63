"""docs/architecture.md names every role, package and module of the router, and nothing that isn't there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROUTER = ROOT / "roles/router/files/wake_router"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", PAGE))
TOP_LEVEL = (
    "roles",
    "playbooks",
    "inventory",
    "group_vars",
    "locks",
    "monitoring",
    "docs",
    "tests",
    "molecule",
)


def folders() -> set[str]:
    """Every role, and every package in one."""
    roles = {path.parents[1] for path in ROOT.glob("roles/*/meta/main.yml")}
    packages = {path.parent for path in ROOT.glob("roles/*/**/__init__.py")}
    return {path.relative_to(ROOT).as_posix() for path in roles | packages}


def modules() -> set[str]:
    """Every module of the router, as the page writes it."""
    found = {path.relative_to(ROUTER).as_posix() for path in ROUTER.rglob("*.py")}
    return {name for name in found if not name.endswith("__.py")}


def paths() -> set[str]:
    """What the page quotes that is a path of the repository."""
    return {name for name in QUOTED if name.split("/")[0] in TOP_LEVEL and "/" in name}


def test_every_role_and_package_is_named() -> None:
    assert folders() - QUOTED == set()


@pytest.mark.parametrize("path", sorted(paths()))
def test_every_path_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_module_of_the_router_is_named_and_no_other() -> None:
    assert {name for name in QUOTED if name.endswith(".py") and name not in paths()} == modules()
