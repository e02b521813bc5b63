"""Every command of the docs is run: here, or by the test that the table names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.operating.conftest import Frontdoor
from tests.standin.processes import ROOT

DOCS = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("operations", "api", "architecture")}
EXAMPLE_BOX = "http://gpu-box-1:8000"
RUN_ELSEWHERE = {
    "vllmctl cordon DEVICE": "test_vllmctl.py",
    "vllmctl uncordon DEVICE": "test_vllmctl.py",
    "vllmctl --install-completion": "test_vllmctl.py shows the script for each shell",
    "vllmctl --instance rehearsal status": "tests/e2e/test_operating.py",
    "vllmctl events -f": "test_vllmctl.py",
    "vllmctl logs router": "tests/e2e/test_operating.py",
    "vllmctl logs text": "tests/e2e/test_operating.py",
    "vllmctl pull OWNER/NAME": "tests/docker/hub/test_pull.py and test_pull.py",
    "vllmctl top": "test_vllmctl.py",
}
OTHERS_RUN = ("./box ", "ansible-playbook ")
"""Run by tests/e2e/test_readme.py."""
NAGIOS = (0, 1, 2)


def blocks(language: str, text: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Commands in blocks and in the running text, in order."""
    lines = [line for block in blocks("sh", text) for line in block.splitlines() if line.strip()]
    return lines + [
        quoted for quoted in re.findall(r"`(vllmctl [^`\n]+)`", text) if quoted not in lines
    ]  # fmt: skip


OURS = [
    command
    for text in DOCS.values()
    for command in dict.fromkeys(commands(text))
    if command not in RUN_ELSEWHERE and not command.startswith(OTHERS_RUN)
]


def test_the_docs_have_the_commands_that_others_run() -> None:
    found = {command for text in DOCS.values() for command in commands(text)}
    assert set(RUN_ELSEWHERE) <= found
    assert len(OURS) >= 15


def test_each_command_does_what_it_is_there_for(frontdoor: Frontdoor) -> None:
    """In the order of the docs, since some prepare what others end."""
    for name in ("text", "embed"):
        assert frontdoor.router.order(f"services/{name}/wake", 60).status_code == 200
    for command in OURS:
        words = shlex.split(command.replace(EXAMPLE_BOX, frontdoor.router.url))
        if words[0] == "vllmctl":
            outcome = frontdoor.run(*words[1:])
            assert outcome.status in (NAGIOS if "doctor" in words else (0,)), command
            continue
        assert words[0] in ("curl", "promtool"), command
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, (command, result)
        assert words[0] != "curl" or '"error"' not in result.stdout, result.stdout


def test_the_client_of_the_docs_works(frontdoor: Frontdoor) -> None:
    assert frontdoor.router.order("services/text/sleep", 60).status_code == 200
    (program,) = blocks("python", DOCS["api"])
    result = subprocess.run(
        [sys.executable, "-c", program.replace(EXAMPLE_BOX, frontdoor.router.url)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Paris" in result.stdout, result.stderr
