"""`vllmctl pull`, as the one file that the role puts on the box, from a hub on this machine.

The docker command is a stand-in that runs what containers would run as processes; the download with the hub's
own client, the weights probe and all that vllmctl does are real. tests/docker/hub has real containers.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
from hub_server import COMMIT, Hub, Repository, serving
from safetensors.numpy import save

from tests.operating.conftest import Outcome
from tests.standin.processes import ROOT, wait_until

NAME = "owner/Small-Model"
TOKEN = "hf_notToBeSeenAnywhere"
WEIGHTS = "model.safetensors"
FILES = {WEIGHTS: save({"layer": numpy.ones((400, 1000), numpy.float32)}), "config.json": b"{}"}
STANDIN = ROOT / "tests/standin/docker_command.py"


@dataclass
class Operator:
    """Runs vllmctl on a box of its own, with the stand-in for Docker on the path."""

    program: Path
    folder: Path
    hub: Hub

    @property
    def models(self) -> Path:
        return self.folder / "var/models"

    @property
    def model(self) -> Path:
        return self.models / "Small-Model"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "FRONTDOOR_ROOT": str(self.folder / "opt"),
            "FRONTDOOR_STATE_ROOT": str(self.folder / "var"),
            "STANDIN_DOCKER": str(self.folder / "docker"),
        }

    def settings(self, **changes: Any) -> None:
        """Write down what the deployment says."""
        said = {
            "docker_host": "unix:///run/a.sock", "image": "engine:1", "models_root": str(self.models),
            "endpoint": self.hub.endpoint, "network": "bridge", "environment": {}, "ignore": ["*.bin"],
            "xet": False, "stall_seconds": 60, "diagnostics": str(ROOT / "roles/gpu_diag/files"),
            "evidence": str(self.folder / "var/test/evidence"),
            "weights_timeout_seconds": 300, "io_timeout_seconds": 60,
        }  # fmt: skip
        (self.folder / "opt/test/pull.json").write_text(json.dumps(said | changes))

    def run(self, *words: str, **environment: str) -> Outcome:
        done = subprocess.run(
            [self.program, *words],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        print(f"--- vllmctl {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        assert "Traceback" not in done.stdout + done.stderr
        assert TOKEN not in done.stdout + done.stderr
        return Outcome(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str, **environment: str) -> Any:
        outcome = self.run("pull", *words, "--json", **environment)
        assert (outcome.status, outcome.err) == (0, "")
        return json.loads(outcome.out)

    def fail(self, *words: str, **environment: str) -> str:
        """The one sentence of a pull that has to fail."""
        outcome = self.run("pull", *words, "--json", **environment)
        assert (outcome.status, outcome.out) == (1, "")
        (sentence,) = outcome.err.splitlines()
        return sentence

    def asked(self) -> list[dict[str, Any]]:
        """What Docker was asked."""
        return [json.loads(line) for line in (self.folder / "docker/asked").read_text().splitlines()]


@pytest.fixture
def operator(program: Path, tmp_path: Path) -> Iterator[Operator]:
    """An instance `test` without any model, and a hub with one."""
    for name in ("bin", "docker", "opt/test/router", "var/test"):
        (tmp_path / name).mkdir(parents=True)
    docker = tmp_path / "bin/docker"
    docker.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    docker.chmod(0o755)
    with serving() as hub:
        hub.repositories[NAME] = Repository(dict(FILES))
        found = Operator(program, tmp_path, hub)
        found.settings()
        yield found
    shutil.rmtree("/run/vllm-frontdoor/pulling-Small-Model", ignore_errors=True)


def test_a_model_is_pulled_once_proven_and_repaired(operator: Operator) -> None:
    operator.hub.repositories[NAME].damaged[WEIGHTS] = 1
    said = operator.run("pull", NAME)
    assert (said.status, said.err) == (0, "")
    *_, put, use = said.out.splitlines()
    assert put.startswith("model Small-Model: put in place, ") and COMMIT in put
    assert use.endswith(": weights verified. A service uses it with 'model: Small-Model'.")
    assert {name: (operator.model / name).read_bytes() for name in FILES} == FILES
    (kept,) = re.findall(r"^kept aside: (.*)$", said.out, re.MULTILINE)
    assert Path(kept).parent == operator.models / ".bad/Small-Model"
    assert not (operator.models / ".pulling").exists()
    (document,) = (operator.folder / "var/test/evidence/weights").glob("*.json")
    assert json.loads(document.read_text())["details"]["model"] == str(operator.model)

    operator.hub.asked.clear()
    again = operator.run("pull", NAME)
    assert "nothing to do" in again.out and not operator.hub.asked

    (operator.model / "config.json").write_bytes(b"[]")
    found = operator.json(NAME)
    assert (found["action"], found["verdict"], len(found["kept_aside"])) == ("repair", "verified", 1)
    assert (operator.model / "config.json").read_bytes() == b"{}"
    assert operator.json(NAME)["action"] == "nothing"


def test_another_name_and_a_commit_are_taken(operator: Operator) -> None:
    found = operator.json(NAME, "other", "--revision", COMMIT)
    assert (found["folder"], found["commit"]) == (str(operator.models / "other"), COMMIT)
    assert (operator.models / "other/config.json").is_file()


def test_a_person_who_watches_sees_how_far_it_is_and_json_stays_json(operator: Operator) -> None:
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [operator.program, "pull", NAME, "--json"],
            env=operator.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
            timeout=300, check=True,
        )  # fmt: skip
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert json.loads(done.stdout)["action"] == "pull"
    for words in ("looking at what is there", "asking the hub", "checking the weights"):
        assert f"\r\x1b[2K{words}" in shown
    assert shown.endswith("\r\x1b[2K"), "the line is left empty"


def test_the_token_comes_from_the_environment_and_is_in_no_process(operator: Operator) -> None:
    operator.hub.repositories[NAME] = Repository(dict(FILES), token=TOKEN, gated=True)
    assert "is gated: ask for access there, then give your token as HF_TOKEN" in operator.fail(NAME)
    assert operator.json(NAME, HF_TOKEN=TOKEN)["action"] == "pull"
    asked = operator.asked()
    assert any(each["words"][2:4] == ["run", "--detach"] for each in asked)
    assert TOKEN not in json.dumps(asked)
    left = [path for path in operator.folder.rglob("*") if path.is_file()]
    assert [path for path in left if TOKEN.encode() in path.read_bytes()] == []


def test_what_broke_off_goes_on_where_it_was(operator: Operator) -> None:
    large = save({"layer": numpy.ones((6_000, 1000), numpy.float32)})
    repository = operator.hub.repositories[NAME] = Repository({**FILES, WEIGHTS: large})
    repository.hang_after_bytes[WEIGHTS] = 21 << 20
    operator.settings(stall_seconds=10)
    assert "has arrived for 10 s" in operator.fail(NAME)
    assert not operator.model.exists()
    repository.hang_after_bytes.clear()
    operator.hub.asked.clear()
    assert operator.json(NAME)["action"] == "pull"
    (asked,) = (
        each.range for each in operator.hub.asked if each.method == "GET" and each.path.endswith(WEIGHTS)
    )
    assert asked in (f"bytes={10 << 20}-", f"bytes={20 << 20}-")
    assert (operator.model / WEIGHTS).read_bytes() == large


def test_a_pull_that_was_interrupted_goes_on_and_is_taken_over(operator: Operator) -> None:
    repository = operator.hub.repositories[NAME]
    repository.hang_after_bytes[WEIGHTS] = 100_000
    command = [str(operator.program), "pull", NAME]
    with subprocess.Popen(command, env=operator.environment, stdout=subprocess.DEVNULL) as first:
        wait_until(lambda: any("resolve" in each.path for each in operator.hub.asked), 60, "a download")
        first.terminate()
    assert "Another pull of Small-Model is under way" in operator.fail(NAME, "--revision", COMMIT)
    started = [each for each in operator.asked() if "--detach" in each["words"]]
    with subprocess.Popen(command, env=operator.environment, stdout=subprocess.PIPE, text=True) as second:
        operator.hub.released.set()
        repository.hang_after_bytes.clear()
        assert second.stdout is not None and "put in place" in second.stdout.read()
    assert len([each for each in operator.asked() if "--detach" in each["words"]]) == len(started)


def test_wrong_weights_never_get_the_models_name(operator: Operator) -> None:
    broken = save({"layer": numpy.full((10, 10), numpy.nan, numpy.float32)})
    operator.hub.repositories[NAME] = Repository({**FILES, WEIGHTS: broken})
    assert "It was published so; it is not put in place. It is kept in" in operator.fail(NAME)
    assert not operator.model.exists()
    (kept,) = (operator.models / ".bad").iterdir()
    assert (kept / WEIGHTS).read_bytes() == broken


def test_no_room_is_said_before_anything_is_downloaded(operator: Operator) -> None:
    operator.hub.repositories[NAME].claimed_bytes[WEIGHTS] = 40_000_000_000_000
    operator.settings(xet=True)
    assert "The model takes 40000.00 GB" in operator.fail(NAME)
    assert not [each for each in operator.hub.asked if "/resolve/" in each.path]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["owner/none"], "There is no repository owner/none"),
        (["a/b;c"], "'a/b;c' is no name of a repository"),
        ([NAME, "../outside"], "'../outside' is no name for the model's folder"),
        ([NAME, "", "--revision", "v9"], "has no revision 'v9'"),
    ],
)
def test_what_can_not_be_had_is_one_sentence(operator: Operator, words: list[str], sentence: str) -> None:
    assert sentence in operator.fail(*words)
    assert not operator.model.exists()


def test_a_folder_that_a_person_brought_is_left_alone(operator: Operator) -> None:
    operator.model.mkdir(parents=True)
    assert "was not put there by a pull, so it is left alone" in operator.fail(NAME)


# ---- what the box must have


def test_an_instance_of_before_and_a_missing_image_are_told(operator: Operator) -> None:
    operator.settings(image="no-such-image")
    assert "The image no-such-image is not on this machine" in operator.fail(NAME)
    settings = operator.folder / "opt/test/pull.json"
    settings.write_text('{"image": "engine:1"}')
    assert "names no diagnostics; deploy again" in operator.fail(NAME)
    settings.write_text("[")
    assert "is damaged (no JSON object); deploy again" in operator.fail(NAME)
    settings.unlink()
    assert "deploy again" in operator.fail(NAME)


def test_a_docker_that_can_not_be_used_is_one_sentence(operator: Operator) -> None:
    docker = operator.folder / "bin/docker"
    docker.write_text("#!/bin/sh\necho 'permission denied while trying to connect' >&2; exit 1\n")
    said = operator.fail(NAME)
    assert "You may not use the Docker daemon at unix:///run/a.sock: run it with sudo" in said
    assert "the group docker" in said
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    assert "does not answer: Cannot connect" in operator.fail(NAME)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own they don't."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_who_may_not_write_gets_one_sentence(operator: Operator, everybodys: Path) -> None:
    """As a user of no rights, with a Docker that says yes to everything that is asked before a download."""
    shutil.copy(operator.program, everybodys / "vllmctl")
    (everybodys / "opt/test/router").mkdir(parents=True)
    models = everybodys / "models"
    models.mkdir()
    docker = everybodys / "docker"
    docker.write_text(
        "#!/bin/sh\ncase \"$*\" in\n*'image inspect'*) echo '[{}]' ;;\n*container*) exit 1 ;;\nesac\n"
    )
    docker.chmod(0o755)
    operator.settings(models_root=str(models))
    shutil.copy(operator.folder / "opt/test/pull.json", everybodys / "opt/test")
    nobody, no_groups = (65534, list[int]()) if os.geteuid() == 0 else (None, None)

    def said() -> str:
        paths = {"PATH": f"{everybodys}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(everybodys / "none")}
        done = subprocess.run(
            [everybodys / "vllmctl", "pull", NAME],
            env={**operator.environment, **paths, "FRONTDOOR_ROOT": str(everybodys / "opt")},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
            user=nobody, group=nobody, extra_groups=no_groups,
        )  # fmt: skip
        assert done.returncode == 1
        (sentence,) = done.stderr.splitlines()
        return sentence

    models.chmod(0o555)
    assert said().startswith(f"vllmctl: You may not write into {models}: run it with sudo")
    models.chmod(0o777)
    assert "There is no folder in memory for your job" in said()
    (everybodys / "opt/test/pull.json").chmod(0)
    assert said().endswith("pull.json may not be read by you: use sudo.")


def write_settings(operator: Operator, *words: str, **changes: Any) -> int:
    """Have the role write down what a pull goes by; returns how many tasks changed something."""
    variables = {
        "wanted": "settings", "__model_files_operator_file": str(operator.folder / "opt/test/pull.json"),
        "model_files_image": "engine:1", "model_files_root": str(operator.models),
        "model_files_hub_endpoint": operator.hub.endpoint, "model_files_hub_token": TOKEN,
        "gpu_diag_install_dir": str(ROOT / "roles/gpu_diag/files"), "gpu_diag_weights_timeout": 300,
        "gpu_diag_evidence": str(operator.folder / "var/test/evidence"), "gpu_diag_io_timeout": 60,
        **changes,
    }  # fmt: skip
    playbook = [Path(sys.executable).with_name("ansible-playbook"), ROOT / "tests/operating/install.yml"]
    done = subprocess.run(
        [*playbook, "-i", "localhost,", "-vvv", "--diff", *words, "-e", json.dumps(variables)],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a-password" not in done.stdout + done.stderr
    return int(re.findall(r"changed=(\d+)", done.stdout)[0])


def test_what_the_role_writes_down_is_what_it_goes_by(operator: Operator) -> None:
    path = operator.folder / "opt/test/pull.json"
    path.unlink()
    assert write_settings(operator, "--check") == 1 and not path.exists()
    assert write_settings(operator) == 1
    assert path.stat().st_mode & 0o777 == 0o644 and TOKEN not in path.read_text()
    assert write_settings(operator) == 0
    assert operator.json(NAME)["action"] == "pull"
    proxy = {"HTTPS_PROXY": "http://me:a-password@proxy:1", "NO_PROXY": "127.0.0.1"}
    assert write_settings(operator, model_files_hub_environment=proxy) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert operator.json(NAME, "other")["action"] == "pull"
    assert "a-password" not in json.dumps(operator.asked())


# ---- what the file carries


def test_the_file_carries_all_that_its_modules_import(program: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(program.read_bytes())) as archive:
        carried = {
            name.removeprefix("ansible/module_utils/").removesuffix(".py"): archive.read(name).decode()
            for name in archive.namelist()
            if name.startswith("ansible/module_utils/")
        }
        hub = archive.read("vllmctl/hub.py").decode()
        programs = {name for name in archive.namelist() if name.startswith("vllmctl/programs/")}
    source = "\n".join([hub, *carried.values()])
    imported = re.findall(r"^from (?:ansible\.module_utils\.|\.)(\w+) import", source, re.MULTILINE)
    assert set(imported) == carried.keys() - {"__init__"}
    assert programs == {"vllmctl/programs/hub_pull.py", "vllmctl/programs/hub_rules.py"}


def test_repositories_that_were_pulled_complete(operator: Operator) -> None:
    operator.json(NAME)
    completed = operator.run(
        _VLLMCTL_COMPLETE="complete_bash", COMP_WORDS="vllmctl pull own", COMP_CWORD="2"
    ).out.split()  # fmt: skip
    assert completed == [NAME]
