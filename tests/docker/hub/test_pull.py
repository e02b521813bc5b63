"""The playbook and the operator's command pull a model, with the real client, from a hub on this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from hub_server import COMMIT, Hub, Repository, serving
from safetensors.numpy import save

ROOT = Path(__file__).resolve().parents[3]
HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
NAME = "owner/Small-Model"
TOKEN = "hf_notToBeSeenAnywhere"
INSTANCE = "models-test"
SHARDS = {
    f"model-0000{n}-of-00002.safetensors": save({f"layer.{n}": numpy.full((300, 1000), n, numpy.float32)})
    for n in (1, 2)
}
INDEX = {"metadata": {}, "weight_map": {f"layer.{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}}
FILES = {**SHARDS, "config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode()}
SECOND = sorted(SHARDS)[1]
PLACES = ("/run/vllm-frontdoor", "/var/lib/vllm-frontdoor", "/opt/vllm-frontdoor")

pytestmark = pytest.mark.docker


def docker(*arguments: str) -> str:
    """Run docker against the daemon under test."""
    command = ["docker", "--host", HOST, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.strip()


@dataclass
class Pulling:
    """Runs the playbook; everything it prints is kept."""

    hub: Hub
    endpoint: str
    models: Path
    outputs: list[str] = field(default_factory=list)

    playbook: str = "playbooks/pull_model.yml"

    def __call__(self, *words: str, token: str = TOKEN, fails: bool = False, **values: Any) -> str:
        """Pull; answers the output. More `values` are variables."""
        variables = {
            "model_files_repository": NAME,
            "model_files_hub_endpoint": self.endpoint,
            "vllm_service_models_root": str(self.models),
            "frontdoor_instance": INSTANCE,
            **values,
        }
        command = ["ansible-playbook", "-i", "inventory/rehearsal", self.playbook, "-vvv"]
        command += ["-e", json.dumps(variables), *words]
        environment = {**os.environ, "HF_TOKEN": token, "DOCKER_HOST": HOST}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        environment["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        output = done.stdout + done.stderr
        self.outputs.append(output)
        assert "Traceback" not in output and (done.returncode != 0) == fails, output
        return output

    def refused(self, **values: Any) -> str:
        """The output of a pull that has to fail, in one line."""
        return in_one_line(self(fails=True, **values))

    @property
    def model(self) -> Path:
        return self.models / "Small-Model"

    @property
    def vllmctl(self) -> Path:
        return self.models.parent / "vllmctl"

    def put_vllmctl(self) -> str:
        """Put the operator's command onto the box, and what it goes by."""
        (Path("/opt/vllm-frontdoor") / INSTANCE / "router").mkdir(parents=True, exist_ok=True)
        operator = replace(self, playbook="tests/docker/hub/operator.yml")
        return operator(router_vllmctl_path=str(self.vllmctl))

    def start_vllmctl(self, token: str = TOKEN) -> subprocess.Popen[str]:
        """Pull as an operator does, on the box, without this repository."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HF_TOKEN": token, "DOCKER_HOST": HOST, "HOME": "/"}
        return subprocess.Popen(
            [self.vllmctl, "--instance", INSTANCE, "pull", NAME, "--json"],
            cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def in_one_line(output: str) -> str:
    """Long sentences are folded when they are shown."""
    return re.sub(r"\s+", " ", output)


def changed(output: str) -> int:
    """The number of changed tasks, by Ansible's own recap."""
    (count,) = re.findall(r"^localhost .*\bchanged=(\d+)", output, re.MULTILINE)
    return int(count)


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    """A hub that containers reach, with a repository that needs a token; and no model yet."""
    subnet = json.loads(docker("network", "inspect", "bridge"))[0]["IPAM"]["Config"][0]["Subnet"]
    # A daemon with a bridge of its own doesn't name the gateway; it is the first address all the same.
    gateway = next(ipaddress.ip_network(subnet).hosts())
    with serving("0.0.0.0") as hub:
        hub.repositories[NAME] = Repository(dict(FILES), token=TOKEN, gated=True)
        yield Pulling(hub, f"http://{gateway}:{hub.port}", tmp_path / "models")
    for folder in (Path("/opt/vllm-frontdoor") / INSTANCE, Path("/var/lib/vllm-frontdoor") / INSTANCE):
        shutil.rmtree(folder, ignore_errors=True)


def evidence(instance: str) -> list[dict[str, object]]:
    """All documents on weights."""
    folder = Path("/var/lib/vllm-frontdoor") / instance / "evidence/weights"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_a_model_is_pulled_once_verified_and_repaired_and_the_token_is_nowhere(pulling: Pulling) -> None:
    predicted = pulling("--check")
    assert changed(predicted) > 0 and not pulling.models.exists() and not pulling.hub.asked

    pulling.hub.repositories[NAME].damaged[SECOND] = 1
    first = pulling()
    assert {path.name for path in pulling.model.iterdir()} == {*FILES, ".cache"}
    assert all((pulling.model / name).read_bytes() == content for name, content in FILES.items())
    record = json.loads((pulling.models / ".pulled/Small-Model.json").read_text())
    assert record["commit"] == COMMIT and record["repository"] == NAME and set(record["files"]) == set(FILES)
    (document,) = evidence(INSTANCE)
    assert document["verdict"] == "verified"
    (kept,) = (pulling.models / ".bad/Small-Model").iterdir()
    assert kept.name.startswith(f"{SECOND}.bad-") and f"kept aside: {kept}" in in_one_line(first)
    assert not (pulling.models / ".pulling").exists()

    pulling.hub.asked.clear()
    assert changed(pulling()) == 0 and not pulling.hub.asked

    (pulling.model / SECOND).write_bytes(SHARDS[SECOND][:-1] + b"x")
    inode = (pulling.model / sorted(SHARDS)[0]).stat().st_ino
    repaired = pulling()
    assert f"{SECOND} has other content than its checksum says, fetched anew" in in_one_line(repaired)
    assert (pulling.model / SECOND).read_bytes() == SHARDS[SECOND]
    assert (pulling.model / sorted(SHARDS)[0]).stat().st_ino == inode
    assert len(list((pulling.models / ".bad/Small-Model").iterdir())) == 2
    assert evidence(INSTANCE)[-1]["verdict"] == "verified"
    assert changed(pulling()) == 0

    assert TOKEN not in "".join(pulling.outputs)
    left = subprocess.run(
        ["grep", "-rl", TOKEN, str(pulling.models), *PLACES],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert left.stdout == ""
    assert "pulling-Small-Model" not in docker("ps", "--all", "--format", "{{.Names}}")


def test_what_can_not_be_had_is_said_and_leaves_no_model(pulling: Pulling) -> None:
    assert "is gated: ask for access there" in pulling.refused(token="")
    assert "There is no repository owner/none" in pulling.refused(model_files_repository="owner/none")
    assert "needs a plain name" in pulling.refused(model_files_name="../outside")
    broken = save({"layer.1": numpy.full((10, 10), numpy.nan, numpy.float32)})
    pulling.hub.repositories[NAME].files = {"model.safetensors": broken, "config.json": b"{}"}
    assert "It was published so; it is not put in place. It is kept in" in pulling.refused()
    assert [path.name for path in pulling.models.iterdir() if not path.name.startswith(".")] == []
    (kept,) = (pulling.models / ".bad").iterdir()
    assert (kept / "model.safetensors").read_bytes() == broken


def test_a_container_that_is_taken_away_is_said_and_the_next_run_goes_on(pulling: Pulling) -> None:
    repository = pulling.hub.repositories[NAME]
    repository.hang_after_bytes[SECOND] = 100_000
    said = pulling.refused(model_files_hub_stall_seconds=3)
    assert "has arrived for 3 s" in said and not pulling.model.exists()
    repository.hang_after_bytes.clear()
    assert "put in place" in in_one_line(pulling())


def process_list() -> str:
    """The arguments of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


def test_the_operator_pulls_on_the_box_and_the_playbook_finds_the_same(pulling: Pulling) -> None:
    pulling.put_vllmctl()
    assert changed(pulling.put_vllmctl()) == 0

    with pulling.start_vllmctl(token="") as refused:
        out, said = refused.communicate(timeout=300)
    assert (refused.returncode, out) == (1, "") and "is gated: ask for access there" in said

    repository = pulling.hub.repositories[NAME]
    repository.hang_after_bytes[SECOND] = 100_000
    with pulling.start_vllmctl() as running:
        deadline = time.monotonic() + 300
        while not any(each.method == "GET" and each.path.endswith(SECOND) for each in pulling.hub.asked):
            assert running.poll() is None and time.monotonic() < deadline, "no download"
            time.sleep(0.2)
        assert TOKEN not in process_list()
        assert TOKEN not in docker("inspect", "vllm-frontdoor-pulling-Small-Model")
        repository.damaged[SECOND] = 1
        repository.hang_after_bytes.clear()
        pulling.hub.released.set()
        out, said = running.communicate(timeout=300)
    assert (running.returncode, said) == (0, "")
    found = json.loads(out)
    assert (found["action"], found["verdict"], found["commit"]) == ("pull", "verified", COMMIT)
    assert all((pulling.model / name).read_bytes() == content for name, content in FILES.items())
    (kept,) = found["kept_aside"]
    assert Path(kept).parent == pulling.models / ".bad/Small-Model"
    assert "pulling-Small-Model" not in docker("ps", "--all", "--format", "{{.Names}}")
    assert not list(Path("/run/vllm-frontdoor").glob("pulling-*"))

    assert changed(pulling()) == 0, "the playbook takes it for its own"
