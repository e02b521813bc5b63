"""A command that would deploy to no box at all says so, instead of succeeding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        ["site"],
        ["plan", "-e", "router_idle_sleep_minutes=5"],
        ["pull", "OWNER/NAME"],
        ["bundle", "/srv/frontdoor.bundle"],
        ["calibrate"],
        ["rollback", "--check"],
        ["teardown"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_without_an_inventory_is_refused(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_INVENTORY"}
    run = subprocess.run(
        [REPOSITORY / "box", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.startswith("box: say which boxes, with -i inventory/hosts.yml")


def test_a_playbook_that_finds_no_box_fails(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("others: {hosts: {localhost: {ansible_connection: local}}}\n")
    run = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", inventory, REPOSITORY / "site.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "frontdoor" in run.stderr


@dataclass(frozen=True)
class Copy:
    """A copy of `box` whose ansible-playbook prints its arguments."""

    folder: Path

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`./box WORDS`, from the copy's folder or another."""
        environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_INVENTORY"}
        return subprocess.run(
            [self.folder / "box", *words],
            cwd=cwd or self.folder,
            env=environment | {"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Prepared, so that nothing is installed; its Python is the one that runs the tests."""
    folder = tmp_path / "copy"
    slips = "roles/box_tools/files/yaml_slips.py"
    for name in ("box", slips, "locks/control.txt", "inventory/hosts.example.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    shutil.copytree(REPOSITORY / "group_vars", folder / "group_vars")
    shutil.copytree(REPOSITORY / "inventory/rehearsal", folder / "inventory/rehearsal", symlinks=True)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ansible-playbook").write_text('#!/bin/sh\necho "ran $*"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    shutil.copy(folder / "locks/control.txt", folder / ".venv/installed-control")
    return Copy(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["-i", "in there/hosts.yml"],
        ["-iin there/hosts.yml"],
        ["--inventory", "in there/hosts.yml"],
        ["--inventory=in there/hosts.yml"],
        ["-i", "hosts.yml", "-v", "-i", "in there/hosts.yml"],
    ],
    ids=" ".join,
)
def test_an_inventory_that_is_not_there_is_refused(copy: Copy, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "hosts.yml").write_text("frontdoor: {}\n")
    run = copy.run("plan", *words, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("box: the inventory in there/hosts.yml isn't there; make that file from ")
    (tmp_path / "in there").mkdir()
    (tmp_path / "in there/hosts.yml").write_text("frontdoor: {}\n")
    assert copy.run("plan", *words, cwd=tmp_path).stdout.startswith("ran ")


def test_a_version_needs_no_inventory(copy: Copy) -> None:
    assert copy.run("site", "--version").stdout.startswith("ran ")


def test_a_list_of_hosts_is_no_file(copy: Copy) -> None:
    assert copy.run("site", "-i", "localhost,").stdout.startswith("ran ")


@pytest.mark.parametrize("words", [["rehearse", "--help"], ["site", "-h"], ["pull", "--help"]], ids=" ".join)
def test_help_is_shown_and_nothing_prepared(copy: Copy, words: list[str]) -> None:
    shutil.rmtree(copy.folder / ".venv")
    run = copy.run(*words)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("usage: ./box COMMAND")
    assert run.stdout.endswith("ARGS are those of ansible-playbook: ansible-playbook --help\n")
    assert not (copy.folder / ".venv").exists()


@pytest.mark.parametrize("command", ["test", "bench"])
def test_help_of_the_checks_installs_nothing(copy: Copy, command: str) -> None:
    run = copy.run(command, "--help")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("usage: ./box COMMAND")


@pytest.mark.parametrize(
    ("word", "known"), [("--dwon", False), ("--prune", False), ("--diff", True), ("--check", True)]
)
def test_a_misspelt_word_of_rehearse_is_refused(copy: Copy, word: str, known: bool) -> None:
    run = copy.run("rehearse", word)
    assert run.stdout.startswith("ran ") == known
    assert run.stderr.startswith(f"box: rehearse doesn't know {word}; did you mean --down") == (not known)
    assert run.returncode == (0 if known else 1)


def test_an_unknown_command_is_named_last(copy: Copy) -> None:
    run = copy.run("deploy")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.splitlines()[-1] == "box: there is no command 'deploy'."


def test_a_rehearsal_that_is_not_there_is_told(copy: Copy) -> None:
    """vllmctl is never in the folders of this PATH: the role puts it into /usr/local/bin."""
    run = copy.run("status")
    assert run.returncode == 1
    assert run.stderr.startswith("box: the rehearsal is not deployed here (or was stopped)")


def test_a_slip_in_yaml_is_shown_with_file_and_line(copy: Copy, tmp_path: Path) -> None:
    services = copy.folder / "group_vars/rehearsal/services.yml"
    services.write_text("a:\n  b: 1\n   c: 2\n")
    run = copy.run("rehearse")
    assert (run.returncode, run.stdout) == (1, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("box: group_vars/rehearsal/services.yml:3:5: mapping values are not allowed")
    from_above = copy.run("rehearse", cwd=tmp_path).stderr
    assert from_above.startswith("box: copy/group_vars/rehearsal/services.yml:3:5: ")


def test_every_file_with_a_slip_is_named(copy: Copy, tmp_path: Path) -> None:
    broken = {"hosts.yml": "a: [\n", "group_vars/all": "a: *b\n", "host_vars/one/x.yaml": "a: 'b\n"}
    for name, text in broken.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = copy.run("site", "-i", str(tmp_path / "hosts.yml"))
    assert run.returncode == 1
    told = sorted(line.removeprefix(f"box: {tmp_path}/").split(":")[0] for line in run.stderr.splitlines())
    assert told == sorted(broken)


@pytest.mark.parametrize(
    "text", ["$ANSIBLE_VAULT;1.1;AES256\n61: 62: 63\n", "a: !vault |\n  x\nb: !unsafe 'c'\n"]
)
def test_what_ansible_can_read_is_no_slip(copy: Copy, text: str) -> None:
    (copy.folder / "group_vars/all/secrets.yml").write_text(text)
    run = copy.run("rehearse")
    assert (run.returncode, run.stderr) == (0, "")
