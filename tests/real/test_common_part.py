"""The common part is the same on real engines and on the stand-in: the same tests, in the same number."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.real.fleet import RealEngine
from tests.real.page import VERSIONS
from tests.real.plugin import FIGURES
from tests.standin.processes import ROOT

STAND_INS = tuple(f"stand-in {version}" for version in VERSIONS)


def collected_for_the_stand_in() -> list[str]:
    """Ids of the contract suite's tests as they run without a real engine."""
    command = [sys.executable, "-m", "pytest", "tests/contract", "--collect-only", "-p", "no:cacheprovider"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if "::" in line]


def common_part(ids: list[str], target: str) -> set[str]:
    """Those that run on a target, without its name."""
    pattern = re.compile(rf"(?<=\[){re.escape(target)}(?=[\]-])")
    return {pattern.sub("*", each) for each in ids if pattern.search(each)}


def test_the_same_tests_in_the_same_number(request: pytest.FixtureRequest) -> None:
    of_the_stand_in = collected_for_the_stand_in()
    here = common_part([item.nodeid for item in request.session.items], "started")
    assert len(here) >= 34
    for target in STAND_INS:
        assert common_part(of_the_stand_in, target) == here


def test_the_version_that_runs(text: RealEngine, embed: RealEngine, pytestconfig: pytest.Config) -> None:
    version = text.version()
    assert version in VERSIONS
    assert embed.version() == version
    image = pytestconfig.getoption("--engine-image")
    assert str(image).endswith(f":{version}")
    FIGURES.append(f"/version of {image}: {version}")
