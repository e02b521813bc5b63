"""A whole box installed from a bundle in a network of its own, from which no route leads anywhere.

In it run the controller, a Docker daemon of its own (started by the role), the router and the engines. So
whatever would be fetched fails, and the box answers only if nothing is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clean_copy import copy_repository

pytestmark = pytest.mark.docker

INSTANCE = "airgapped-test"
FOLDER = Path("/var/lib/vllm-frontdoor-airgapped-test")
SOCKET = f"unix://{FOLDER}/docker.sock"
PLACES = (Path("/opt/vllm-frontdoor") / INSTANCE, Path("/var/lib/vllm-frontdoor") / INSTANCE)


@dataclass
class AirGapped:
    """A clean copy of the repository, and the network that it is used in."""

    clone: Path
    bundle: Path
    outside: subprocess.Popen[bytes]

    def box(self, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
        """Run ``./box WORDS`` in the network without a way out, with nothing in any cache."""
        variables = {
            "frontdoor_instance": INSTANCE,
            "container_engine_data_root": str(FOLDER / "docker/data"),
            "vllm_service_models_root": str(FOLDER / "models"),
            "engine_image_record": str(FOLDER / "images.json"),
            "bundle_root": str(FOLDER / "unpacked"),
            **values,
        }
        environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "ANSIBLE_"))
            },
            "HOME": str(FOLDER / "home"),
            "DOCKER_HOST": SOCKET,
            "FRONTDOOR_BUNDLE": str(self.bundle),
        }
        inside = ["nsenter", "--net", "--target", str(self.outside.pid)]
        return subprocess.run(
            [*inside, "./box", *words, "-e", json.dumps(variables)],
            cwd=self.clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )


@pytest.fixture
def air_gapped(tmp_path: Path) -> Iterator[AirGapped]:
    """A bundle of the rehearsal, and a network with a loopback and nothing else."""
    clone = copy_repository(tmp_path / "vllm-frontdoor")
    FOLDER.mkdir()
    (FOLDER / "home").mkdir()
    bundle = FOLDER / "all.bundle"
    collected = f"bundle_root={FOLDER}/collected"
    words = ["./box", "bundle", str(bundle), "-i", "inventory/rehearsal", "-e", collected]
    made = subprocess.run(words, cwd=clone, capture_output=True, text=True, timeout=1800, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    # What the making of the bundle has prepared is not there on the other side.
    shutil.rmtree(clone / ".venv")
    holder = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep 3600"]
    with subprocess.Popen(holder, stdout=subprocess.PIPE) as outside:
        assert outside.stdout is not None and outside.stdout.readline() == b"ready\n"
        try:
            yield AirGapped(clone, bundle, outside)
        finally:
            _stop_daemon(FOLDER / "docker/dockerd.pid")
            outside.kill()
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((point for point in mounts if point.startswith(f"{FOLDER}/")), key=len, reverse=True):
        subprocess.run(["umount", point], check=True)
    for place in (FOLDER, *PLACES):
        shutil.rmtree(place, ignore_errors=True)


def _stop_daemon(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, f"the daemon {pid} did not end"
        time.sleep(0.3)


def _changed(output: str) -> int:
    (count,) = re.findall(r"^localhost .*\bchanged=(\d+)", output, re.MULTILINE)
    return int(count)


def test_a_box_is_installed_from_a_bundle_where_there_is_no_network(air_gapped: AirGapped) -> None:
    reached = subprocess.run(
        ["nsenter", "--net", "--target", str(air_gapped.outside.pid), "ip", "route"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert reached.stdout == ""

    _alter_a_model(air_gapped.bundle)
    refused = air_gapped.box("rehearse")
    assert refused.returncode != 0
    said = re.sub(r"\s+", " ", refused.stdout)
    assert re.search(r"The file models/\S+ in the bundle \S+ is damaged", said), refused.stdout
    assert not (FOLDER / "docker").exists()

    _alter_a_model(air_gapped.bundle)
    first = air_gapped.box("rehearse")
    assert first.returncode == 0, first.stdout
    assert "Paris" in first.stdout and _changed(first.stdout) > 0
    again = air_gapped.box("rehearse")
    assert again.returncode == 0 and _changed(again.stdout) == 0, again.stdout


def _alter_a_model(bundle: Path) -> None:
    """Flip one bit in the middle of a model's weights; done twice, all is as before."""
    with tarfile.open(bundle) as archive:
        (member,) = (
            each for each in archive if each.name.endswith("SmolLM2-135M-Instruct/model.safetensors")
        )
        position = member.offset_data + member.size // 2
    with bundle.open("r+b") as file:
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ 1]))
