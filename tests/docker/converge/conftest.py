"""A box with real containers of a tiny image, and the module run against it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parent / "run_module.py"
DOCKER_HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
IMAGE = "converge-test-busybox:1"
OTHER_IMAGE = "converge-test-busybox:2"
APPLETS = ("sh", "sleep", "httpd", "wget", "echo", "cat", "test", "true")


def docker(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def busybox(folder: Path) -> Path:
    """The static busybox: the installed one, else the Debian package's."""
    if (installed := shutil.which("busybox")) is not None:
        return Path(installed)
    subprocess.run(["apt-get", "download", "busybox-static"], cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("busybox-static_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "package"], check=True)
    return folder / "package/bin/busybox"


def import_image(folder: Path, program: Path, reference: str) -> None:
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(program, "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    # The change makes each reference an image of its own.
    docker("import", "--change", f"LABEL reference={reference}", str(archive), reference)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("image")
    program = busybox(folder)
    for reference in (IMAGE, OTHER_IMAGE):
        import_image(folder, program, reference)
    yield
    docker("image", "rm", "--force", IMAGE, OTHER_IMAGE)


class Box:
    """An instance with two engines of their own networks and one service on the host's network."""

    def __init__(self, folder: Path, instance: str, subnet: int) -> None:
        self.folder = folder
        self.instance = instance
        self.root = folder / "opt" / instance
        self.state = folder / "var" / instance
        self.project = f"{instance}-engines"
        self.services: dict[str, dict[str, Any]] = {
            "text": self.engine("text"),
            "embed": self.engine("embed"),
            "front": self.front(),
        }
        self.networks: dict[str, dict[str, Any]] = {
            "text": self.network("text", f"10.214.{subnet}.16/28", internal=True),
            "embed": self.network("embed", f"10.214.{subnet}.32/28", internal=False),
        }
        self.services["text"]["networks"] = {"text": {"ipv4_address": f"10.214.{subnet}.18"}}
        self.services["embed"]["networks"] = {"embed": {"ipv4_address": f"10.214.{subnet}.34"}}
        self.environment_files = {"text": "MODEL=a\n", "embed": "MODEL=b\n"}
        self.files: dict[str, dict[str, Any]] = {"registry/registry.json": {"content": '{"services": []}\n'}}
        self.options: dict[str, Any] = {"healthy_timeout_seconds": 30, "docker_host": DOCKER_HOST}

    def name(self, service: str) -> str:
        return f"{self.instance}-{service}"

    def engine(self, service: str) -> dict[str, Any]:
        return {
            "image": IMAGE,
            "container_name": self.name(service),
            "command": ["httpd", "-f", "-p", "8000", "-h", "/www"],
            "init": True,
            "restart": "unless-stopped",
            "stop_grace_period": "2s",
            "env_file": [f"{service}.env"],
            "mem_limit": "64m",
            "volumes": [
                {
                    "type": "bind",
                    "source": str(self.root / "registry"),
                    "target": "/www",
                    "read_only": True,
                }
            ],
            "healthcheck": {
                "test": ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/registry.json"],
                "interval": "1s",
                "timeout": "2s",
                "retries": 5,
                "start_period": "5s",
            },
        }

    def front(self) -> dict[str, Any]:
        return {
            "image": IMAGE,
            "container_name": self.name("front"),
            "command": ["sleep", "100000"],
            "init": True,
            "restart": "unless-stopped",
            "network_mode": "host",
            "read_only": True,
            "cap_drop": ["ALL"],
            "stop_grace_period": "2s",
        }

    def network(self, service: str, subnet: str, *, internal: bool) -> dict[str, Any]:
        return {
            "name": self.name(service),
            "internal": internal,
            "labels": {"vllm-frontdoor.instance": self.instance, "vllm-frontdoor.service": service},
            "ipam": {"config": [{"subnet": subnet}]},
        }

    def compose(self) -> dict[str, Any]:
        services = {}
        for name, definition in self.services.items():
            canonical = json.dumps([definition, self.networks.get(name)], sort_keys=True).encode()
            labels = {
                "vllm-frontdoor.instance": self.instance,
                "vllm-frontdoor.service": name,
                "vllm-frontdoor.definition": hashlib.sha256(canonical).hexdigest(),
            }
            services[name] = {**definition, "labels": labels}
        used = {name: network for name, network in self.networks.items() if name in self.services}
        return {"services": services, "networks": used}

    def arguments(self) -> dict[str, Any]:
        files = [{"path": "engines/compose.yml", "content": json.dumps(self.compose(), indent=1)}]
        files += [
            {"path": f"engines/{name}.env", "content": content, "mode": "0640"}
            for name, content in self.environment_files.items()
            if name in self.services
        ]
        files += [{"path": path, **options} for path, options in self.files.items()]
        return {
            "root": str(self.root),
            "state": str(self.state),
            "project": self.project,
            "compose_file": "engines/compose.yml",
            "compose": self.compose(),
            "files": files,
            "directories": [
                {"path": str(self.root)},
                {"path": str(self.state / "router"), "owner": "10810", "group": "10810", "mode": "0750"},
            ],
            "secrets": [{"path": "secrets/admin-token", "group": "10810"}],
            **self.options,
        }

    def start(self, *, check: bool = False, diff: bool = False) -> subprocess.Popen[str]:
        document = self.arguments() | {"_ansible_check_mode": check, "_ansible_diff": diff}
        path = self.folder / f"arguments-{os.urandom(4).hex()}.json"
        path.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": document}))
        return subprocess.Popen(
            [sys.executable, str(RUNNER), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *, check: bool = False, diff: bool = False) -> dict[str, Any]:
        output, errors = self.start(check=check, diff=diff).communicate(timeout=180)
        assert "Traceback" not in output + errors, output + errors
        result: dict[str, Any] = json.loads(output)
        return result

    def ids(self) -> dict[str, str]:
        """Ids of the running containers of the project, by name."""
        label = f"label=com.docker.compose.project={self.project}"
        lines = docker("ps", "--no-trunc", "--filter", label, "--format", "{{.Names}} {{.ID}}").splitlines()
        return dict(line.split() for line in lines)

    def all_ids(self) -> set[str]:
        """Ids of all containers that this test may have made, running or not."""
        return set(docker("ps", "--all", "--quiet", "--no-trunc", "--filter", "name=converge-").split())

    def repair(self, *sentences: str, renewed: tuple[str, ...] = ()) -> None:
        """Check mode predicts the sentences; the run does what they say, renews the containers of the named
        services and no other; and a run after it changes nothing."""
        kept = {name: id_ for name, id_ in self.ids().items() if name not in map(self.name, renewed)}
        before = self.all_ids()
        predicted = self.run(check=True)
        assert predicted["changes"] == list(sentences), predicted
        assert predicted["changed"] is bool(sentences)
        assert self.all_ids() == before, "check mode did something"
        done = self.run()
        assert not done.get("failed"), done
        assert (done["changes"], done["changed"]) == (list(sentences), bool(sentences)), done
        after = self.ids()
        assert set(after) == {self.name(service) for service in self.services}
        assert {name: after.get(name) for name in kept if name in after} == {
            name: id_ for name, id_ in kept.items() if name in after
        }
        assert not {after[self.name(service)] for service in renewed} & before
        again = self.run()
        assert (again["changed"], again["changes"]) == (False, []), again
        assert self.ids() == after

    def remove(self) -> None:
        label = f"label=vllm-frontdoor.instance={self.instance}"
        if ids := docker("ps", "--all", "--quiet", "--filter", label).split():
            docker("rm", "--force", "--volumes", *ids)
        if ids := docker("network", "ls", "--quiet", "--filter", label).split():
            docker("network", "rm", *ids)
        names = docker("network", "ls", "--format", "{{.Name}}").split()
        for name in names:
            if name.startswith(f"{self.instance}-"):
                docker("network", "rm", name)


@pytest.fixture(scope="module")
def box(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box that all tests of a file share, deployed once."""
    one = Box(tmp_path_factory.mktemp("box"), "converge-shared", 1)
    one.remove()
    first = one.run()
    assert not first.get("failed"), first
    yield one
    one.remove()


@pytest.fixture
def fresh_box(images: None, tmp_path: Path) -> Iterator[Box]:
    """A box of the test's own on which nothing is deployed."""
    one = Box(tmp_path, "converge-own", 2)
    one.remove()
    yield one
    one.remove()
