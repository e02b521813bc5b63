"""Wheels travel as one file: the same wheels give the same file, and the box holds these and no others."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.bundle_manifest import BundleError
from bundle_wheels import WheelsError, pack, sources, unpack


@pytest.fixture
def sets(tmp_path: Path) -> list[dict[str, Any]]:
    """Two folders of a cache; only some of what they hold is asked for, one wheel by two sets."""
    content = {"cp311-x86_64": ["a-1.whl", "b-1.whl", "stray-1.whl"], "cp312-x86_64": ["a-1.whl"]}
    for name, wheels in content.items():
        (tmp_path / "cache" / name).mkdir(parents=True)
        for wheel in wheels:
            (tmp_path / "cache" / name / wheel).write_text(f"{name} {wheel}")
    asked = [
        ("cp311-x86_64", ["a-1.whl"]),
        ("cp311-x86_64", ["a-1.whl", "b-1.whl"]),
        ("cp312-x86_64", ["a-1.whl"]),
    ]
    return [
        {"folder": str(tmp_path / "cache" / name), "wheels": [{"file": wheel} for wheel in wheels]}
        for name, wheels in asked
    ]


NAMES = ["cp311-x86_64/a-1.whl", "cp311-x86_64/b-1.whl", "cp312-x86_64/a-1.whl"]


def test_what_was_asked_for_arrives(tmp_path: Path, sets: list[dict[str, Any]]) -> None:
    archive, root = tmp_path / "new" / "wheels.tar", tmp_path / "box" / "wheels"
    assert pack(archive, sources(sets))
    assert unpack(archive, root) == (True, NAMES)
    for name in NAMES:
        assert (root / name).read_text() == name.replace("/", " ")
    assert [path.name for path in root.parent.iterdir()] == ["wheels"], "something was left beside it"
    assert [path.name for path in archive.parent.iterdir()] == ["wheels.tar"], "something was left beside it"


def test_the_same_again_changes_nothing(tmp_path: Path, sets: list[dict[str, Any]]) -> None:
    archive, root = tmp_path / "wheels.tar", tmp_path / "wheels"
    pack(archive, sources(sets))
    unpack(archive, root)
    content, inode = archive.read_bytes(), root.stat().st_ino
    # Fetched anew, the same wheel has another time.
    path = tmp_path / "cache" / NAMES[0]
    path.write_text(path.read_text())
    assert not pack(archive, sources(list(reversed(sets))))
    assert (archive.read_bytes(), unpack(archive, root)) == (content, (False, NAMES))
    assert root.stat().st_ino == inode


@pytest.mark.parametrize("how", ["altered", "missing", "stray"])
def test_a_folder_that_is_not_as_it_should_be_is_put_right(
    tmp_path: Path, sets: list[dict[str, Any]], how: str
) -> None:
    archive, root = tmp_path / "wheels.tar", tmp_path / "wheels"
    pack(archive, sources(sets))
    unpack(archive, root)
    if how == "altered":
        (root / NAMES[0]).write_text("other")
    elif how == "missing":
        (root / NAMES[0]).unlink()
    else:
        (root / "cp311-x86_64" / "a-0.whl").write_text("an older one")
    assert unpack(archive, root) == (True, NAMES)
    assert sorted(path.relative_to(root).as_posix() for path in root.glob("*/*")) == NAMES
    assert (root / NAMES[0]).read_text() == "cp311-x86_64 a-1.whl"


def test_a_damaged_archive_is_refused_and_the_folder_kept(tmp_path: Path, sets: list[dict[str, Any]]) -> None:
    archive, root = tmp_path / "wheels.tar", tmp_path / "wheels"
    pack(archive, sources(sets))
    unpack(archive, root)
    archive.write_bytes(archive.read_bytes()[:700])
    with pytest.raises(WheelsError, match=r"wheels\.tar of wheels is damaged"):
        unpack(archive, root)
    assert (root / NAMES[0]).exists()


def test_an_archive_writes_nothing_beside_its_folder(tmp_path: Path) -> None:
    archive, root = tmp_path / "wheels.tar", tmp_path / "wheels"
    with tarfile.open(archive, "w") as packed:
        outside = tarfile.TarInfo("../outside.whl")
        outside.size = 1
        packed.addfile(outside, io.BytesIO(b"x"))
    with pytest.raises(BundleError, match="no safe path"):
        unpack(archive, root)
    assert [path.name for path in tmp_path.iterdir()] == ["wheels.tar"]
