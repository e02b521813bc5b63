"""Parts of a bundle on real programs that see no network: packages, images and models, Ansible's wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import ansible
import pytest
from clean_copy import copy_repository

from tests.docker.images.conftest import HOST, ROOT, Run, docker

ENGINE = "models-test/engine:1"
OTHER_NAME = "vllm-frontdoor/models-test:1"


def test_docker_is_installed_out_of_a_folder_where_there_is_no_network(
    run: Run, base: str, tmp_path: Path
) -> None:
    folder = tmp_path / "packages"
    names = ["docker.io", "iptables"]
    collected = run("container_engine_debs", state="collected", folder=str(folder), names=names)
    assert collected["changed"] and any(name.startswith("docker.io_") for name in collected["files"])
    assert not run("container_engine_debs", state="collected", folder=str(folder), names=names)["changed"]

    asked = {"state": "installed", "folder": "/packages", "names": names}
    (tmp_path / "arguments.json").write_text(json.dumps({"ANSIBLE_MODULE_ARGS": asked}))
    module = "python3 /repository/tests/docker/images/run_module.py container_engine_debs /arguments.json"
    said = docker(
        *(
            "run",
            "--rm",
            "--name",
            "models-test-packages",
            "--network",
            "none",
            "--env",
            "PYTHONPATH=/controller",
        ),
        *("--volume", f"{ROOT}:/repository:ro", "--volume", f"{folder}:/packages:ro"),
        *("--volume", f"{Path(ansible.__file__).parent}:/controller/ansible:ro"),
        *("--volume", f"{tmp_path}/arguments.json:/arguments.json:ro", base, "sh", "-c"),
        f"{module} && {module} && dockerd --version",
    )
    first, second, version = (line for line in said.splitlines() if line)
    assert json.loads(first)["changed"] and not json.loads(second)["changed"]
    assert version.startswith("Docker version ")


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """An engine's image of nothing but a file, under two names."""
    (tmp_path / "file").write_text("engine")
    with tarfile.open(tmp_path / "system.tar", "w") as archive:
        archive.add(tmp_path / "file", "file")
    docker("import", str(tmp_path / "system.tar"), ENGINE)
    docker("tag", ENGINE, OTHER_NAME)
    return [ENGINE]


def test_images_and_models_come_out_of_a_bundle_where_there_is_no_network(
    run: Run, images: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "source/m"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    bundle, root, models = tmp_path / "all.bundle", tmp_path / "root", tmp_path / "models"
    parts: dict[str, Any] = {"models": [str(model)], "root": str(tmp_path / "parts"), "docker_host": HOST}
    made = run("bundle_collect", output=str(bundle), images=images, **parts)
    assert made["changed"], made
    again = run("bundle_collect", output=str(bundle), images=images, **parts)
    assert not again["changed"] and again["manifest_sha256"] == made["manifest_sha256"]
    image = docker("image", "inspect", "--format", "{{.Id}}", ENGINE)
    docker("rmi", ENGINE, OTHER_NAME)

    record = tmp_path / "images.json"
    opening: dict[str, Any] = {"bundle": str(bundle), "root": str(root), "own_network": True}
    taking: dict[str, Any] = {
        "bundle": str(bundle),
        "docker_host": HOST,
        "record": str(record),
        "models_root": str(models),
        "own_network": True,
    }
    try:
        assert run("bundle_open", **opening)["images"] == [ENGINE, OTHER_NAME]
        predicted = run("bundle_contents", check_mode=True, **taking)["changes"]
        assert not models.exists() and docker("image", "ls", "--quiet", ENGINE) == ""
        taken = run("bundle_contents", **taking)
        assert (
            taken["changes"]
            == predicted
            == [
                f"image {ENGINE}: loaded",
                f"image {OTHER_NAME}: loaded",
                "model m: not there, put in place",
            ]
        )
        assert docker("image", "inspect", "--format", "{{.Id}}", OTHER_NAME) == image
        assert json.loads(record.read_text())[ENGINE]["id"] == image
        assert (models / "m/config.json").read_text() == "{}"
        assert not run("bundle_contents", **taking)["changed"]
        assert not run("bundle_open", **opening)["changed"]
    finally:
        docker("rmi", ENGINE, OTHER_NAME, check=False)


def test_an_image_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"models": [], "root": str(tmp_path), "docker_host": HOST}
    answer = run("bundle_collect", output=str(tmp_path / "b"), images=["models-test/none:1"], **parts)
    assert answer["failed"] and answer["msg"].startswith("The image models-test/none:1 is not on the box")
    assert not (tmp_path / "b").exists()


def test_the_controller_is_prepared_out_of_a_bundle_where_there_is_no_network(
    run: Run, tmp_path: Path
) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    cache = Path(os.environ.get("HOME", "/root")) / ".cache/vllm-frontdoor"
    wheels = run("box_tools_wheels", lock=[str(ROOT / "locks/control.txt")], python=python, cache=str(cache))
    parts = tmp_path / "parts/wheels" / Path(wheels["folder"]).name
    parts.mkdir(parents=True)
    for each in wheels["wheels"]:
        shutil.copy(f"{wheels['folder']}/{each['file']}", parts)
    bundle = tmp_path / "all.bundle"
    asked: dict[str, Any] = {
        "output": str(bundle),
        "images": [],
        "models": [],
        "root": str(tmp_path / "parts"),
    }
    assert run("bundle_collect", **asked)["changed"]
    clone = copy_repository(tmp_path / "clone")
    done = subprocess.run(
        ["unshare", "--net", "./box", "site", "--version"],
        cwd=clone,
        env={**os.environ, "FRONTDOOR_BUNDLE": str(bundle)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0 and "[core 2.19" in done.stdout, done.stdout + done.stderr
