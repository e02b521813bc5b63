"""The page of what has run on real engines is what the tests say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.page import PAGE, REPOSITORY, Collected, collect, page


@pytest.fixture(scope="module")
def printed() -> str:
    """The page as it would be written now; in a process of its own, since it collects tests."""
    command = [sys.executable, "-m", "tests.real.page", "--print"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def test_the_committed_page_is_what_the_tests_make(printed: str) -> None:
    assert PAGE.read_text() == printed, "write it anew: python -m tests.real.page"


def test_what_no_real_engine_has_shown_is_named(printed: str) -> None:
    _, never = printed.split("## Never proven on a real engine")
    for what in ("`/classify`", "vision", "audio", "realtime", "faults on order"):
        assert what in never


def test_files_that_show_the_like_on_real_engines_exist(printed: str) -> None:
    named = [line.split("`")[1] for line in printed.splitlines() if line.startswith("Tests of the stand-in")]
    assert named
    assert all(Path(REPOSITORY, name).is_file() for name in named)


def test_variants_are_counted() -> None:
    text = page(Collected(common={"sleeps": 1, "wakes": 2}, never={"audio": {"speech": 1}}))
    assert "(3 tests)" in text
    assert "- sleeps\n- wakes (2 variants)\n" in text
    assert "On the stand-in only: audio\n\n- speech\n" in text


def test_tests_that_cannot_be_collected_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest.main", lambda *_, **__: pytest.ExitCode.USAGE_ERROR)
    with pytest.raises(ValueError, match="can't be collected"):
        collect()
