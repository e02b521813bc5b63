"""The role puts vllmctl onto the box: predicted, once, repaired, removed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin.processes import ROOT

PLAYBOOK = ROOT / "tests" / "operating" / "install.yml"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The controller's cache of wheels, empty at first."""
    return tmp_path_factory.mktemp("cache")


def play(dest: Path, cache: Path, *words: str, wanted: str = "present") -> tuple[list[str], int]:
    """Run the role's tasks; returns the sentences about what changed, and how many tasks did."""
    variables = (f"wanted={wanted}", f"router_vllmctl_path={dest}", f"router_vllmctl_cache={cache}")
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [str(program), "-i", "localhost,", str(PLAYBOOK), *words]
    for variable in variables:
        command += ["-e", variable]
    result = subprocess.run(
        command,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    print(result.stdout, result.stderr)
    assert result.returncode == 0, result.stdout + result.stderr
    (changed,) = re.findall(r"changed=(\d+)", result.stdout)
    told = " ".join(result.stdout.split())  # long lines are folded
    return re.findall(r"file \S+: \w+", told), int(changed)


def test_it_is_predicted_made_kept_repaired_and_removed(tmp_path: Path, cache: Path) -> None:
    dest = tmp_path / "vllmctl"
    created = [f"file {dest}: created"]

    assert play(dest, cache, "--check") == (created, 2)  # the wheels, and the file
    assert not dest.exists()
    assert play(dest, cache) == (created, 2)
    content = dest.read_bytes()
    assert dest.stat().st_mode & 0o777 == 0o755
    helped = subprocess.run([dest, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: vllmctl" in helped.stdout
    assert play(dest, cache) == ([], 0)
    assert play(dest, cache, "--check") == ([], 0)

    dest.write_bytes(content + b"something else")
    replaced = [f"file {dest}: replaced"]
    assert play(dest, cache, "--check", "--diff") == (replaced, 1)
    assert play(dest, cache) == (replaced, 1)
    assert dest.read_bytes() == content

    assert play(dest, cache, "--check", wanted="absent")[1] == 1
    assert dest.exists()
    assert play(dest, cache, wanted="absent")[1] == 1
    assert not dest.exists()
    assert play(dest, cache, wanted="absent")[1] == 0


def test_a_wheel_that_is_not_pure_python_is_refused(tmp_path: Path) -> None:
    from vllmctl_bundle import BundleError, bundle

    with pytest.raises(BundleError, match=r"fast-1\.0-cp311-cp311-linux_x86_64\.whl is not pure Python"):
        bundle(ROOT / "roles/router/files/vllmctl", [tmp_path / "fast-1.0-cp311-cp311-linux_x86_64.whl"])
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"nothing")
    with pytest.raises(BundleError, match="can't be read"):
        bundle(ROOT / "roles/router/files/vllmctl", [tmp_path / "broken-1.0-py3-none-any.whl"])
