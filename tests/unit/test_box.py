"""A command that would deploy to no box at all says so, instead of succeeding."""

from __future__ import annotations

import os
import re
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
        ["diagnose", "--tags", "p2p"],
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
    """A copy of `box` whose ansible-playbook prints its arguments. Its ansible-inventory is the real one."""

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
    checks = [f"roles/box_tools/files/{name}.py" for name in ("yaml_slips", "no_box")]
    for name in ("box", "ansible.cfg", *checks, "locks/control.txt", "inventory/hosts.example.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    shutil.copytree(REPOSITORY / "group_vars", folder / "group_vars")
    shutil.copytree(REPOSITORY / "inventory/rehearsal", folder / "inventory/rehearsal", symlinks=True)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ansible-playbook").write_text('#!/bin/sh\necho "ran $*"\n')
    inventory = Path(sys.executable).parent / "ansible-inventory"
    (programs / "ansible-inventory").write_text(f'#!/bin/sh\nexec "{inventory}" "$@"\n')
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
    (tmp_path / "hosts.yml").write_text("frontdoor: {hosts: {one: }}\n")
    run = copy.run("plan", *words, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("box: the inventory in there/hosts.yml isn't there; make that file from ")
    (tmp_path / "in there").mkdir()
    (tmp_path / "in there/hosts.yml").write_text("frontdoor: {hosts: {one: }}\n")
    assert copy.run("plan", *words, cwd=tmp_path).stdout.startswith("ran ")


def test_a_version_needs_no_inventory(copy: Copy) -> None:
    assert copy.run("site", "--version").stdout.startswith("ran ")


@pytest.mark.parametrize(
    ("hosts", "others"),
    [
        ("frontdoor:\n  children:\n    gpu_boxes:\n      hosts:\n", "It names no machine at all."),
        ("fontdoor: {children: {gpu_boxes: {hosts: {one: }}}}\n", "with machines are: fontdoor, gpu_boxes."),
        ("all: {hosts: {one: }}\n", "Groups with machines are: ungrouped."),
    ],
    ids=["nobody", "misspelt", "in no group"],
)
def test_an_inventory_without_a_box_is_refused(copy: Copy, tmp_path: Path, hosts: str, others: str) -> None:
    """Ansible itself would succeed, and have done nothing."""
    (tmp_path / "hosts.yml").write_text(hosts)
    run = copy.run("site", "-i", str(tmp_path / "hosts.yml"))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("box: the inventory has no machine in the group 'frontdoor', so ")
    assert others in run.stderr


def test_a_list_of_hosts_is_no_file(copy: Copy) -> None:
    assert "with machines are: ungrouped." in copy.run("site", "-i", "localhost,").stderr


def test_several_inventories_are_one(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[gpu_boxes]\none\n")
    (tmp_path / "b.yml").write_text("frontdoor: {children: {gpu_boxes: {}}}\n")
    run = copy.run("site", "-i", str(tmp_path / "a"), "-i", str(tmp_path / "b.yml"))
    assert run.stdout.startswith("ran ")


def test_what_only_a_password_opens_is_left_to_ansible(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    for inventory in (tmp_path / "hosts.yml", tmp_path):
        assert copy.run("site", "-i", str(inventory)).stdout.startswith("ran ")


def test_what_is_no_inventory_at_all_is_refused(copy: Copy, tmp_path: Path) -> None:
    """Ansible would only warn."""
    (tmp_path / "hosts").write_text("{ nothing\n")
    run = copy.run("site", "-i", str(tmp_path / "hosts"))
    assert (run.returncode, run.stdout) == (1, "")
    assert "no machine in the group 'frontdoor'" in run.stderr


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


def test_help_of_a_status_that_is_not_there_is_help(copy: Copy) -> None:
    run = copy.run("status", "--help")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("usage: ./box COMMAND")


def test_a_bundle_that_is_not_there_is_called_so(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRONTDOOR_BUNDLE", "/nowhere/frontdoor.bundle")
    run = copy.run("rehearse")
    assert (run.returncode, run.stdout) == (1, "")
    assert "the bundle /nowhere/frontdoor.bundle (from FRONTDOOR_BUNDLE) isn't there" in run.stderr


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


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ("frontdoor:\n  host:\n    one:\n", "2:3: a group has no 'host', only hosts, children, vars."),
        (
            "frontdoor:\n  children:\n    boxes:\n      hosts:\n        - one\n",
            "5:9: 'hosts' is a list; write ",
        ),
        ("frontdoor:\n  hosts:\n    one:\n    one:\n", "4:5: 'one' stands in line 3 already; only one "),
    ],
    ids=["host", "list", "twice"],
)
def test_a_slip_in_an_inventory_is_shown(copy: Copy, tmp_path: Path, hosts: str, told: str) -> None:
    (tmp_path / "hosts.yml").write_text(hosts)
    run = copy.run("site", "-i", str(tmp_path / "hosts.yml"))
    assert (run.returncode, run.stdout) == (1, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"box: {tmp_path}/hosts.yml:{told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("text:\n  slot:1\n  model: x\n", "in line 2 ('slot:1') a space after the colon is missing"),
        (
            "text:\n  devices:[gpu0]\n  model: x\n",
            "in line 2 ('devices:[gpu0]') a space after the colon is missing",
        ),
        ("text:\n  model: {{ foo }}\n", '2:10: a template needs quotes around it: "{{ ... }}"'),
    ],
)
def test_a_usual_slip_is_called_by_its_name(copy: Copy, text: str, told: str) -> None:
    (copy.folder / "group_vars/rehearsal/services.yml").write_text(text)
    run = copy.run("rehearse")
    assert (run.returncode, run.stdout) == (1, "")
    assert told in run.stderr


@pytest.mark.parametrize(
    ("hosts", "kept"),
    [
        ("base: &base {vars: {a: 1}}\nfrontdoor: {<<: *base, hosts: {one: }}\n", "hosts.yml"),
        ("frontdoor: {hosts: {one: }, description: ours}\n", "hosts.yml"),
        ("frontdoor: {hosts: {one: {1: a, '1': b}}}\n", "hosts.yml"),
        ("job: {script: [a]}\n", ".gitlab-ci.yml"),
        ("a: [\n", "group_vars/.git/config"),
        ("a: [\n", "group_vars/README"),
        ("a: [\n", "host_vars/one~"),
        ("a: [\n", "host_vars/one/notes"),
    ],
)
def test_what_ansible_takes_or_never_reads_is_no_slip(
    copy: Copy, tmp_path: Path, hosts: str, kept: str
) -> None:
    folder = tmp_path / "boxes"
    (folder / kept).parent.mkdir(parents=True)
    (folder / "hosts.yml").write_text("frontdoor: {hosts: {one: }}\n")
    (folder / kept).write_text(hosts)
    for words in (["-i", str(folder)], ["--inventory-file", str(folder / "hosts.yml")]):
        run = copy.run("plan", *words)
        assert (run.returncode, run.stderr) == (0, ""), run.stderr


def test_a_slip_in_group_vars_that_do_not_apply_is_none(copy: Copy, tmp_path: Path) -> None:
    (copy.folder / "group_vars/all/broken.yml").write_text("a: [\n")
    (tmp_path / "hosts.yml").write_text("frontdoor: {hosts: {one: }}\n")
    assert copy.run("plan", "-i", str(tmp_path / "hosts.yml")).returncode == 0
    assert copy.run("rehearse").returncode == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["diagnose", "--tags", "weight"],
            "there is no tag 'weight'; diagnose has: host integrity p2p weights.",
        ),
        (["diagnose", "--tags=p2p,weight"], "there is no tag 'weight'"),
        (["plan", "-t", "foo"], "tags are for diagnose only; everything else runs as a whole."),
        (["diagnose", "-tp2p,host"], None),
    ],
)
def test_a_tag_that_is_not_there_is_refused(copy: Copy, words: list[str], told: str | None) -> None:
    """With it, Ansible would do nothing and succeed."""
    run = copy.run(*words, "-i", str(copy.folder / "inventory/rehearsal"))
    assert run.returncode == (0 if told is None else 1)
    assert run.stderr.startswith(f"box: {told}" if told else "")


def test_the_tags_that_box_knows_are_those_of_the_playbook() -> None:
    files = [REPOSITORY / "playbooks/diagnose.yml", *(REPOSITORY / "roles/gpu_diag/tasks").glob("*.yml")]
    found = {
        tag
        for path in files
        for tags in re.findall(r"tags: \[(.*?)\]", path.read_text())
        for tag in tags.split(", ")
    }
    assert f'known="{" ".join(sorted(found))}"' in (REPOSITORY / "box").read_text()


def test_a_service_declared_twice_is_shown(copy: Copy) -> None:
    services = copy.folder / "group_vars/rehearsal/services.yml"
    services.write_text("vllm_service_services:\n  text: {slot: 1}\n  other: {}\n  text: {slot: 2}\n")
    run = copy.run("rehearse")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        "box: group_vars/rehearsal/services.yml:4:3: 'text' stands in line 2 already; "
        "only one of them would count.\n"
    )


def test_ansible_refuses_what_stands_twice_too(tmp_path: Path) -> None:
    """Whoever starts ansible-playbook without `box` isn't served worse."""
    (tmp_path / "twice.yml").write_text("a: 1\na: 2\n")
    program = Path(sys.executable).parent / "ansible-playbook"
    words = [
        "-i",
        "inventory/rehearsal",
        "playbooks/plan.yml",
        "--list-tasks",
        "-e",
        f"@{tmp_path}/twice.yml",
    ]
    run = subprocess.run(
        [program, *words],
        cwd=REPOSITORY,
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "duplicate mapping key 'a'" in run.stderr


def test_anchors_and_aliases_are_no_slip(copy: Copy) -> None:
    text = "a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: [*a, *a]\n"
    (copy.folder / "group_vars/all/more.yml").write_text(text)
    run = copy.run("rehearse")
    assert (run.returncode, run.stderr) == (0, "")
