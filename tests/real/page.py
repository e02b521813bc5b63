"""The page of what has run on real engines and what hasn't, made from the tests themselves.

`python -m tests.real.page` writes it, with --print it only prints it; a unit test holds the committed page to
it.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "real-engines.md"
VERSIONS: Final = ("0.27.1", "0.32.0")

NOT_ON_THESE_MODELS: Final = {"/classify": "neither of the rehearsal's models classifies"}
"""Routes of the public surface that no model of the rehearsal offers, and why."""
NOT_TRIED: Final = ("vision: a request with an image, and a canary that looks at one: neither model sees",)
"""What not even the stand-in shows."""

HEAD = """# What has run on real engines

vLLM {versions} run in the stage `./box test real`, which runs on order, as CPU builds in containers,
started with the flags, the environment and the launcher that the plan renders for the rehearsal. The same
contract suite runs on them as on the stand-in engine, in whose two dialects most tests of the router are
run; where they differ, the stand-in is wrong. This page is made from the tests: `python -m tests.real.page`.
On a GPU none of it has run.
"""


@dataclass
class Collected:
    """The tests of the contract suite and of tests/real: functions, with the number of their variants."""

    common: dict[str, int] = field(default_factory=dict)
    besides: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the file that shows the like on real engines."""
    never: dict[str, dict[str, int]] = field(default_factory=dict)
    """By what it is about."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort them."""
        for item in items:
            self._group_of(item)[_sentence(item)] = self._group_of(item).get(_sentence(item), 0) + 1

    def _group_of(self, item: pytest.Item) -> dict[str, int]:
        if item.path.parent.name == "real":
            return self.besides
        if "target" in getattr(item, "fixturenames", ()):
            # Without a real engine each runs once for every dialect.
            return self.common
        mark = item.get_closest_marker("stand_in_only")
        if mark is not None and mark.kwargs.get("instead"):
            return self.elsewhere.setdefault(mark.kwargs["instead"], {})
        return self.never.setdefault(mark.args[0] if mark is not None else _about(item), {})


def _about(item: pytest.Item) -> str:
    """The first sentence of its module."""
    module = item.getparent(pytest.Module)
    text = (module.obj.__doc__ or item.path.name) if module is not None else item.path.name
    return " ".join(text.split(". ")[0].split()).rstrip(".")


def _sentence(item: pytest.Item) -> str:
    name = getattr(item, "originalname", item.name)
    return str(name).removeprefix("test_").replace("_", " ")


def collect() -> Collected:
    """All tests of both folders; raises ValueError when they can't be collected."""
    collected = Collected()
    folders = ["tests/contract", "tests/real"]
    options = ["--collect-only", "-p", "no:cacheprovider"]
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main([*folders, *options], plugins=[collected])
    if status is not pytest.ExitCode.OK:
        raise ValueError(f"the tests can't be collected: python -m pytest {' '.join(folders)} --collect-only")
    dialects = len(VERSIONS)
    collected.common = {name: count // dialects for name, count in collected.common.items()}
    return collected


def _lines(tests: dict[str, int]) -> Iterable[str]:
    for name, count in tests.items():
        yield f"- {name}" + (f" ({count} variants)" if count > 1 else "")


def page(collected: Collected) -> str:
    """The page."""
    lines = [HEAD.format(versions=" and ".join(VERSIONS))]
    lines += [f"## The same on all four targets ({sum(collected.common.values())} tests)", ""]
    lines += [*_lines(collected.common), ""]
    lines += [f"## On the real engines besides ({sum(collected.besides.values())} tests)", ""]
    lines += [*_lines(collected.besides), ""]
    for file, tests in collected.elsewhere.items():
        lines += [f"Tests of the stand-in whose like is among these (`{file}`):", "", *_lines(tests), ""]
    lines += ["## Never proven on a real engine", "", "Neither on the stand-in:", ""]
    lines += [f"- `{path}`: {why}" for path, why in NOT_ON_THESE_MODELS.items()]
    lines += [*(f"- {what}" for what in NOT_TRIED), ""]
    for what, tests in collected.never.items():
        lines += [f"On the stand-in only: {what}", "", *(f"- {name}" for name in tests), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    text = page(collect())
    if "--print" in sys.argv[1:]:
        print(text, end="")
    else:
        PAGE.write_text(text)
