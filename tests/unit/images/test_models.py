"""Model files: what is wrong, what is read, what is restored."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.model_files_folder import (
    inspect,
    load_record,
    put_in_place,
    record_path,
    save_record,
)
from ansible.module_utils.model_files_rules import (
    PackageError,
    Stamp,
    Verified,
    check_package,
    sentences,
    to_hash,
)
from model_files_package import unpack, verify

ROOT = Path(__file__).resolve().parents[3]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


FILES = {"config.json": sha("{}"), "1_Pooling/config.json": sha("[]")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one right model `m`, remembered as verified."""
    folder = tmp_path / "m"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling/config.json").write_text("[]")
    save_record(record_path(tmp_path, "m"), folder, FILES)
    return tmp_path


def test_a_verified_model_is_not_read_again(root: Path) -> None:
    assert inspect(root, "m", FILES, rehash=False) == ({}, {})
    assert inspect(root, "m", FILES, rehash=True) == ({}, FILES)


def test_a_touched_file_is_read_and_proves_right(root: Path) -> None:
    os.utime(root / "m/config.json", (1, 1))
    assert inspect(root, "m", FILES, rehash=False) == ({}, {"config.json": sha("{}")})


def test_deleted_and_altered_files_are_told_apart(root: Path) -> None:
    (root / "m/config.json").write_text("[]")
    (root / "m/1_Pooling/config.json").unlink()
    wrong, _ = inspect(root, "m", FILES, rehash=False)
    assert sentences("m", 2, wrong) == [
        "model m: 1_Pooling/config.json is missing, restored",
        "model m: config.json has other content than its checksum says, restored",
    ]


def test_a_file_altered_behind_its_time_is_found_by_a_full_rehash_only(root: Path) -> None:
    path = root / "m/config.json"
    before = path.stat().st_mtime_ns
    path.write_text("[]")
    os.utime(path, ns=(before, before))
    assert inspect(root, "m", FILES, rehash=False)[0] == {}
    assert list(inspect(root, "m", FILES, rehash=True)[0]) == ["config.json"]


def test_a_changed_checksum_is_noticed_without_reading(root: Path) -> None:
    wrong, hashes = inspect(root, "m", {**FILES, "config.json": sha("new")}, rehash=False)
    assert list(wrong) == ["config.json"]
    assert hashes == {}


def test_an_unreadable_record_means_reading_everything(root: Path) -> None:
    record_path(root, "m").write_text("{")
    assert load_record(record_path(root, "m")) == {}
    assert inspect(root, "m", FILES, rehash=False) == ({}, FILES)


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    wrong, _ = inspect(tmp_path, "m", FILES, rehash=False)
    assert sentences("m", 2, wrong) == ["model m: not there, put in place"]


def test_missing_files_are_not_read() -> None:
    stamp = Stamp(1, 1)
    assert to_hash({"a": "x", "b": "y"}, {"a": stamp}, {"a": Verified("x", stamp)}, rehash=True) == ["a"]


def test_restoring_keeps_the_folder_and_the_right_files(root: Path) -> None:
    staging = root / ".making"
    (staging / "1_Pooling").mkdir(parents=True)
    (staging / "config.json").write_text("{}")
    (staging / "1_Pooling/config.json").write_text("[]")
    folder, right = (root / "m").stat().st_ino, (root / "m/config.json").stat().st_ino
    (root / "m/1_Pooling/config.json").unlink()
    (root / "m/1_Pooling").rmdir()
    put_in_place(staging, root / "m", ["1_Pooling/config.json"])
    assert (root / "m/1_Pooling/config.json").read_text() == "[]"
    assert ((root / "m").stat().st_ino, (root / "m/config.json").stat().st_ino) == (folder, right)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "a/b"}, "plain folder name"),
        ({"name": ".hidden"}, "plain folder name"),
        ({"files": {}}, "lists no files"),
        ({"files": {"../x": sha("")}}, "relative to the model"),
        ({"files": {"/x": sha("")}}, "relative to the model"),
        ({"files": {"x": "abc"}}, "64 digits"),
    ],
)
def test_a_package_declared_wrongly_is_refused(change: dict[str, Any], said: str) -> None:
    package = {"name": "m", "files": FILES}
    check_package(package)
    with pytest.raises(PackageError, match=said):
        check_package({**package, **change})


def test_the_ready_made_packages_are_declared_rightly() -> None:
    defaults = yaml.safe_load((ROOT / "roles/model_files/defaults/main.yml").read_text())
    packages = defaults["model_files_small_models"]
    assert [package["name"] for package in packages] == ["SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"]
    for package in packages:
        check_package(package)
        assert "--hash=sha256:" in package["requirement"]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/model/config.json", "{}")
        archive.writestr("p/model/1_Pooling/config.json", "[]")
        archive.writestr("p/model/unlisted.md", "x")
        archive.writestr("p/modeling.py", "x")
    return path


def test_a_folder_or_a_file_is_taken_out_of_a_wheel(wheel: Path, tmp_path: Path) -> None:
    unpack(wheel, "p/model", tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "1_Pooling",
        "config.json",
        "unlisted.md",
    ]
    unpack(wheel, "p/modeling.py", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["modeling.py"]
    with pytest.raises(PackageError, match="holds no 'p/none'"):
        unpack(wheel, "p/none", tmp_path / "none")


def test_what_was_made_is_verified_and_what_is_not_listed_goes(wheel: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    unpack(wheel, "p/model", made)
    verify({"name": "m", "files": FILES}, made)
    assert sorted(path.relative_to(made).as_posix() for path in made.rglob("*.*")) == sorted(FILES)
    with pytest.raises(PackageError, match="nothing was put in place"):
        verify({"name": "m", "files": {"config.json": sha("other")}}, made)
    with pytest.raises(PackageError, match="gave no file"):
        verify({"name": "m", "files": {"model.safetensors": sha("x")}}, made)
