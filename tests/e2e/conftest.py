"""The rehearsal box of the end-to-end tests: deployed once, by the README's command, shared by all."""

from __future__ import annotations

import shutil

import pytest
from clean_copy import copy_repository
from rehearsal_box import ROOT, STATE, Box, Deployed, container_names_on_default_daemon

LAST = "test_teardown.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes the rehearsal down comes after all that needs it."""
    items.sort(key=lambda item: item.path.name == LAST)


@pytest.fixture(scope="session")
def clean_box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A copy of what git tracks (or would), with nothing prepared, and no rehearsal on the machine."""
    folder = copy_repository(tmp_path_factory.mktemp("clone") / "vllm-frontdoor")
    assert not container_names_on_default_daemon(), "A rehearsal runs already: ./box rehearse --down"
    return Box(folder)


@pytest.fixture(scope="session")
def deployed(clean_box: Box) -> Deployed:
    """Deploy the rehearsal on a machine that has nothing, after asking what that would change."""
    for folder in (ROOT, STATE):
        shutil.rmtree(folder, ignore_errors=True)
    predicted = clean_box.succeed("rehearse", "--check")
    assert not ROOT.exists(), "a run with --check wrote to the box"
    return Deployed(clean_box, predicted, clean_box.succeed("rehearse"))
