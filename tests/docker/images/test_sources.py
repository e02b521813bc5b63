"""Images from a registry and from an archive, with a real registry on the loopback."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.images.conftest import HOST, Run, docker
from tests.standin.ports import free_port

CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
"""


def image(reference: str, content: str) -> str:
    """Import an image that holds nothing but `content`; gives back its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("content")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content.encode()))
    command = ["docker", "--host", HOST, "import", "-", reference]
    return (
        subprocess.run(command, input=archive.getvalue(), capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a registry that this test started; Docker talks to the loopback without TLS."""
    program = shutil.which("docker-registry")
    assert program, "docker-registry is needed: apt-get install docker-registry"
    folder = tmp_path_factory.mktemp("registry")
    port = free_port()
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder / "data", port=port))
    with subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL) as server:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("the registry did not come up")
        yield f"127.0.0.1:{port}"
        server.terminate()


def publish(reference: str, content: str) -> str:
    """Put an image into the registry, remove it here, and give back its digest."""
    image(reference, content)
    docker("push", reference)
    digest = docker("image", "inspect", "--format", "{{index .RepoDigests 0}}", reference).split("@")[1]
    docker("image", "rm", "--force", reference)
    return digest


def test_the_first_digest_is_recorded_and_enforced(registry: str, run: Run, tmp_path: Path) -> None:
    reference = f"{registry}/images-test/vllm:v1"
    arguments: dict[str, Any] = {
        "docker_host": HOST,
        "reference": reference,
        "record": str(tmp_path / "state" / "images.json"),
    }
    first = publish(reference, "first")
    predicted = run("engine_image_registry", check_mode=True, **arguments)
    assert (predicted["changed"], predicted["digest"]) == (True, "")
    assert docker("image", "ls", "--quiet", reference) == ""
    pulled = run("engine_image_registry", **arguments)
    assert (pulled["changed"], pulled["digest"]) == (True, first)
    assert not run("engine_image_registry", **arguments)["changed"]

    # Someone publishes another image under the same tag: a box that lost its image still gets the first.
    second = publish(reference, "second")
    again = run("engine_image_registry", **arguments)
    assert (again["changed"], again["digest"]) == (True, first)
    assert docker("image", "inspect", "--format", "{{index .RepoDigests 0}}", reference).endswith(first)

    # And one that has the second on it is refused, until a person gives its digest.
    docker("image", "rm", "--force", reference)
    docker("pull", "--quiet", reference)
    refused = run("engine_image_registry", **arguments)
    assert refused["failed"] and first in refused["msg"] and second in refused["msg"]
    assert "engine_image_digest" in refused["msg"]
    given = run("engine_image_registry", **arguments, digest=second)
    assert (given["changed"], given["digest"]) == (True, second)
    assert not run("engine_image_registry", **arguments)["failed"]
    docker("image", "rm", "--force", reference)


def test_an_image_that_cannot_be_pulled_is_a_sentence(registry: str, run: Run, tmp_path: Path) -> None:
    reference = f"{registry}/images-test/none:v1"
    record = tmp_path / "images.json"
    answer = run("engine_image_registry", docker_host=HOST, reference=reference, record=str(record))
    assert answer["failed"]
    assert f"The image {reference} can't be pulled" in answer["msg"]
    assert not record.exists()


def test_a_local_image_is_not_taken_for_one_of_a_registry(run: Run, tmp_path: Path) -> None:
    image("images-test/local:1", "local")
    record = str(tmp_path / "images.json")
    answer = run("engine_image_registry", docker_host=HOST, reference="images-test/local:1", record=record)
    assert answer["failed"] and "did not come from a registry" in answer["msg"]
    docker("image", "rm", "--force", "images-test/local:1")


def test_an_archive_is_compared_before_it_is_loaded(run: Run, tmp_path: Path) -> None:
    reference, archive = "images-test/archived:1", tmp_path / "image.tar"
    loaded = image(reference, "archived")
    docker("save", "--output", str(archive), reference)
    docker("image", "rm", "--force", reference)
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    arguments: dict[str, Any] = {
        "docker_host": HOST,
        "reference": reference,
        "path": str(archive),
        "record": str(tmp_path / "images.json"),
    }
    refused = run("engine_image_archive", **arguments, sha256="0" * 64)
    assert refused["failed"] and sha256 in refused["msg"] and "nothing was loaded" in refused["msg"]
    assert docker("image", "ls", "--quiet", reference) == ""

    assert run("engine_image_archive", check_mode=True, **arguments, sha256=sha256)["changed"]
    assert docker("image", "ls", "--quiet", reference) == ""
    assert run("engine_image_archive", **arguments, sha256=f"sha256:{sha256}")["id"] == loaded
    archive.unlink()
    assert not run("engine_image_archive", **arguments, sha256=sha256)["changed"]

    docker("image", "rm", "--force", reference)
    missing = run("engine_image_archive", **arguments, sha256=sha256)
    assert missing["failed"] and "is not on the box" in missing["msg"]


def test_an_archive_with_another_image_is_said(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    image("images-test/other:1", "other")
    docker("save", "--output", str(archive), "images-test/other:1")
    answer = run(
        "engine_image_archive",
        docker_host=HOST,
        reference="images-test/wanted:1",
        path=str(archive),
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        record=str(tmp_path / "images.json"),
    )
    assert answer["failed"] and "images-test/other:1" in answer["msg"]
    docker("image", "rm", "--force", "images-test/other:1")
