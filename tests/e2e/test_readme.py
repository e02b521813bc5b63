"""Every command of the README and of the docs is run: here, or by the test that the table names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from rehearsal_box import REPOSITORY, Deployed

PAGES = [REPOSITORY / name for name in ("README.md", "docs/operations.md", "docs/hardware.md")]
README = "\n".join(page.read_text() for page in PAGES)
BLOCKS = "".join(re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
QUOTED = "\n".join(re.findall(r"`([^`\n]+)`", README))
COMMAND = re.compile(r"^(?:\./box|ansible-playbook) .*$", re.MULTILINE)
COMMANDS = sorted({*COMMAND.findall(BLOCKS), *COMMAND.findall(QUOTED)})
RUN_ELSEWHERE = {
    "./box bench --quick": "tests/contract/test_bench.py",
    "./box rehearse --down": "test_teardown.py",
    "./box rehearse --purge": "tests/removal/test_purge.py",
    "./box calibrate -i inventory/hosts.yml": "test_calibration.py",
    "./box bundle /srv/frontdoor.bundle -i inventory/hosts.yml": "its parts, by test_bundle.py",
    "./box pull OWNER/NAME -i inventory/hosts.yml": "tests/docker/hub/test_pull.py",
    "./box rollback -i inventory/hosts.yml": "test_deployment.py",
}
# The checks themselves: this test is part of them.
CHECKS = re.compile(r"\./box test\b")
ONLY_NAMED = {"./box diagnose"}
"""Names in the running text; with the inventory that they need, they stand in a block as well."""
RUN_HERE = [
    command
    for command in COMMANDS
    if command not in RUN_ELSEWHERE and command not in ONLY_NAMED and not CHECKS.match(command)
]


def test_the_readme_has_the_commands_that_others_run() -> None:
    assert set(RUN_ELSEWHERE) <= set(COMMANDS)
    assert all(any(command.startswith(f"{name} -i ") for command in COMMANDS) for name in ONLY_NAMED)
    assert len(RUN_HERE) >= 5


def path_for(command: str, folder: Path) -> str:
    """A user of `box` has no ansible-playbook on the path; who starts that one by its name has it there."""
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return system if command.startswith("./box ") else f"{folder}/.venv/bin:{system}"


@pytest.mark.parametrize("command", RUN_HERE)
def test_a_command_of_the_readme(deployed: Deployed, command: str) -> None:
    """An operator's own inventory stands for a GPU box here: this machine, with the rehearsal's services."""
    folder = deployed.box.folder
    shutil.copyfile(folder / "inventory" / "rehearsal" / "hosts.yml", folder / "inventory" / "hosts.yml")
    result = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env={"PATH": path_for(command, folder)} | deployed.box.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(result.stdout, result.stderr)
    assert result.returncode == 0
    always_new = command == "./box status" or command.startswith("./box diagnose ")
    assert "changed=0" in result.stdout or always_new
