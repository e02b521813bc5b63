"""The rehearsal box of the end-to-end tests: deployed once, by the README's command, shared by all."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from rehearsal_box import REPOSITORY, ROOT, STATE, Box, Deployed, container_names_on_default_daemon


@pytest.fixture(scope="session")
def clean_box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A copy of what git tracks (or would), with nothing prepared, and no rehearsal on the machine."""
    folder = tmp_path_factory.mktemp("clone") / "vllm-frontdoor"
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.decode().split("\0")):
        source, target = REPOSITORY / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
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
