"""The weights probe over whole model folders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from gpu_diag.weights import check
from gpu_diag.weights.check import Options, Outcome, Progress
from gpu_diag.weights.encodings import BLOCK_BYTES

from .conftest import WriteSafetensors

ONES_BF16 = b"\x80\x3f"
NAN_BF16 = b"\xc0\x7f"


def run(folder: Path, previous: Outcome | None = None, **options: object) -> Outcome:
    details: Mapping[str, object] = previous.details if previous is not None else {}
    chosen = Options(previous=details, **options)  # type: ignore[arg-type]
    return check.check_folder(str(folder), chosen, Progress())


def files_of(outcome: Outcome) -> dict[str, dict[str, object]]:
    files = outcome.details["files"]
    assert isinstance(files, dict)
    return files


@pytest.fixture
def model(tmp_path: Path, write_safetensors: WriteSafetensors) -> Path:
    """Two shards with an index; the last tensor of the last shard is longer than two blocks."""
    folder = tmp_path / "model"
    long = BLOCK_BYTES + 6
    write_safetensors(
        folder / "model-00001-of-00002.safetensors",
        {"a": ("BF16", [3], ONES_BF16 * 3), "ids": ("I64", [1], bytes(8))},
    )
    write_safetensors(
        folder / "model-00002-of-00002.safetensors",
        {"odd": ("U8", [1], b"x"), "b": ("BF16", [long], ONES_BF16 * long)},
    )
    weight_map = {
        "a": "model-00001-of-00002.safetensors",
        "ids": "model-00001-of-00002.safetensors",
        "odd": "model-00002-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return folder


def last_shard(model: Path) -> Path:
    return model / "model-00002-of-00002.safetensors"


def test_a_whole_model_without_recorded_hashes(model: Path) -> None:
    outcome = run(model)
    assert (outcome.verdict, outcome.class_, outcome.faults) == ("values_only", None, ())
    record = files_of(outcome)[last_shard(model).name]
    assert record["sha256"] == hashlib.sha256(last_shard(model).read_bytes()).hexdigest()
    assert outcome.details["tensors"] == 4


@pytest.mark.parametrize("place", ["first", "before the border", "after the border", "last"])
def test_one_nan_is_found_with_its_tensor_shard_and_offset(model: Path, place: str) -> None:
    content = bytearray(last_shard(model).read_bytes())
    begin = len(content) - 2 * (BLOCK_BYTES + 6)
    in_block = BLOCK_BYTES // 2
    element = {
        "first": 0,
        "before the border": in_block - 1,
        "after the border": in_block,
        "last": BLOCK_BYTES + 5,
    }[place]
    content[begin + 2 * element : begin + 2 * element + 2] = NAN_BF16
    last_shard(model).write_bytes(content)
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "not_finite")
    (fault,) = outcome.faults
    assert (fault.file, fault.tensor, fault.offset) == (last_shard(model).name, "b", begin + 2 * element)
    assert f"NaN at element {element}" in fault.sentence


def test_a_truncated_shard(model: Path) -> None:
    last_shard(model).write_bytes(last_shard(model).read_bytes()[:-1])
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "truncated")
    assert [fault.class_ for fault in outcome.faults] == ["truncated"]


def test_a_missing_shard(model: Path) -> None:
    last_shard(model).unlink()
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "missing_shard")
    assert len(outcome.faults) == 1


def test_a_broken_link(model: Path) -> None:
    last_shard(model).unlink()
    last_shard(model).symlink_to("../blobs/gone")
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "broken_link")
    assert files_of(outcome)[last_shard(model).name] is None


def test_a_key_missing_from_the_index(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    del weight_map["b"]
    index.write_text(json.dumps({"weight_map": weight_map}))
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "not_in_index")


def record_hash(model: Path, name: str, etag: str, seconds: float = 2e9) -> None:
    metadata = model / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(f"{'0' * 40}\n{etag}\n{seconds}\n")


def record_all(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        record_hash(model, path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def test_a_model_with_recorded_hashes_is_verified(model: Path) -> None:
    record_all(model)
    record_hash(model, "config.json", git_blob(b"{}"))
    outcome = run(model)
    assert (outcome.verdict, outcome.faults) == ("verified", ())
    assert files_of(outcome)["config.json"]["matches"] is True


def test_one_shard_without_a_recorded_hash_is_not_verified(model: Path) -> None:
    record_hash(model, last_shard(model).name, hashlib.sha256(last_shard(model).read_bytes()).hexdigest())
    assert run(model).verdict == "values_only"


def test_a_flipped_byte_that_stays_finite_fails_by_its_hash(model: Path) -> None:
    record_all(model)
    content = bytearray(last_shard(model).read_bytes())
    content[-1] ^= 1
    last_shard(model).write_bytes(content)
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("failed", "hash_differs")
    assert outcome.faults[0].file == last_shard(model).name


@pytest.mark.parametrize(("recorded_at", "verdict"), [(1e9, "verified"), (4e9, "failed")])
def test_a_config_edited_after_the_download_is_noted_and_one_damaged_in_it_fails(
    model: Path, recorded_at: float, verdict: str
) -> None:
    record_all(model)
    record_hash(model, "config.json", "1" * 40, recorded_at)
    outcome = run(model)
    assert outcome.verdict == verdict
    assert files_of(outcome)["config.json"]["edited"] is (verdict == "verified")


def test_the_hub_caches_layout(tmp_path: Path, write_safetensors: WriteSafetensors) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0"
    path = write_safetensors(blobs / "new", {"a": ("F32", [1], bytes(4))})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.rename(blobs / digest)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
    assert run(snapshot).verdict == "verified"
    (blobs / digest).write_bytes(path.parent.joinpath(digest).read_bytes()[:-1] + b"\1")
    assert run(snapshot).class_ == "hash_differs"


def test_a_second_run_reads_only_what_changed(model: Path) -> None:
    record_all(model)
    first = run(model)
    progress = Progress()
    again = check.check_folder(str(model), Options(previous=first.details), progress)
    assert again.verdict == "verified"
    assert progress.done_bytes == 0
    assert files_of(again)[last_shard(model).name]["kept_from_before"] is True
    os.utime(last_shard(model))
    progress = Progress()
    third = check.check_folder(str(model), Options(previous=first.details), progress)
    assert (third.verdict, progress.done_bytes) == ("verified", last_shard(model).stat().st_size)


def test_a_file_that_failed_is_read_again(model: Path) -> None:
    content = last_shard(model).read_bytes()
    last_shard(model).write_bytes(content[:-2] + NAN_BF16)
    first = run(model)
    assert run(model, previous=first).class_ == "not_finite"


def test_rehash_finds_a_disk_that_corrupts_what_it_served_well_before(model: Path) -> None:
    first = run(model)
    status = last_shard(model).stat()
    with last_shard(model).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x3e")
    os.utime(last_shard(model), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(model, previous=first).verdict == "values_only"
    outcome = run(model, previous=first, rehash=True)
    assert (outcome.verdict, outcome.class_) == ("failed", "hash_changed")


def test_without_hashing_values_are_still_judged_and_nothing_is_verified(model: Path) -> None:
    record_all(model)
    assert run(model, hashing=False).verdict == "values_only"
    last_shard(model).write_bytes(last_shard(model).read_bytes()[:-2] + NAN_BF16)
    assert run(model, hashing=False).class_ == "not_finite"


def test_a_result_without_a_hash_is_not_kept_where_a_hash_is_wanted(model: Path) -> None:
    record_all(model)
    assert run(model, previous=run(model, hashing=False)).verdict == "verified"


MASKED = b"\x80\xff" + ONES_BF16


def test_infinities_pass_in_a_mask_and_where_allowed_and_nan_never_does(
    tmp_path: Path, write_safetensors: WriteSafetensors
) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"h.attn_mask": ("BF16", [2], MASKED)})
    assert run(tmp_path).verdict == "values_only"
    write_safetensors(path, {"h.bias": ("BF16", [2], MASKED)})
    assert "-Inf at element 0" in run(tmp_path).faults[0].sentence
    assert run(tmp_path, allowed=("h.*",)).verdict == "values_only"
    write_safetensors(path, {"h.attn_mask": ("BF16", [2], MASKED[:2] + NAN_BF16)})
    assert "NaN at element 1" in run(tmp_path).faults[0].sentence


@pytest.mark.parametrize(
    ("scale", "class_"),
    [
        (b"\x00\x3c", None),
        (b"\x00\x00", "bad_scale"),
        (b"\x00\xbc", "bad_scale"),
        (b"\x00\x7e", "not_finite"),
    ],
)
def test_scales_of_packed_integers(
    tmp_path: Path, write_safetensors: WriteSafetensors, scale: bytes, class_: str | None
) -> None:
    content = {"l.qweight": ("I32", [1], bytes(4)), "l.scales": ("F16", [2], b"\x00\x3c" + scale)}
    write_safetensors(tmp_path / "model.safetensors", content)
    outcome = run(tmp_path)
    assert outcome.class_ == class_
    assert class_ is None or outcome.faults[0].tensor == "l.scales"


def test_scales_in_bytes_are_e8m0(tmp_path: Path, write_safetensors: WriteSafetensors) -> None:
    content = {"g_blocks": ("U8", [2], b"\xff\xff"), "g_scales": ("U8", [2], b"\x7f\xff")}
    write_safetensors(tmp_path / "model.safetensors", content)
    (fault,) = run(tmp_path).faults
    assert (fault.class_, fault.tensor) == ("not_finite", "g_scales")


def test_a_missing_scale(tmp_path: Path, write_safetensors: WriteSafetensors) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"l.qweight": ("I32", [1], bytes(4))})
    outcome = run(tmp_path)
    assert (outcome.verdict, outcome.class_) == ("failed", "missing_scale")


def test_a_scale_in_another_shard_is_found(tmp_path: Path, write_safetensors: WriteSafetensors) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"l.qweight": ("I32", [1], bytes(4))})
    write_safetensors(tmp_path / "b.safetensors", {"l.scales": ("F16", [1], b"\x00\x80")})
    first = run(tmp_path)
    assert first.class_ == "bad_scale"


def test_a_pickle_is_only_hashed(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    outcome = run(tmp_path)
    assert (outcome.verdict, outcome.class_) == ("unverified", "unsafe_format")
    assert files_of(outcome)["pytorch_model.bin"]["sha256"]
    record_hash(tmp_path, "pytorch_model.bin", "0" * 64)
    assert run(tmp_path).class_ == "hash_differs"


def test_a_pickle_beside_safetensors_is_not_what_is_loaded(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"x")
    assert run(model).verdict == "values_only"


def test_an_unknown_dtype_is_unverified(tmp_path: Path, write_safetensors: WriteSafetensors) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F3", [8], bytes(3))})
    outcome = run(tmp_path)
    assert (outcome.verdict, outcome.class_) == ("unverified", "unknown_dtype")


def test_a_folder_without_weights_and_one_that_is_not_there(tmp_path: Path) -> None:
    assert (run(tmp_path).verdict, run(tmp_path).class_) == ("unverified", "no_weights")
    absent = run(tmp_path / "absent")
    assert (absent.verdict, absent.class_) == ("unverified", "io_error")


def test_a_named_pipe_that_poses_as_a_shard_is_not_waited_for(model: Path) -> None:
    last_shard(model).unlink()
    os.mkfifo(last_shard(model))
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("unverified", "io_error")
    assert "not a regular file" in outcome.faults[0].sentence


def test_a_disk_that_returns_errors_is_no_fault_of_the_files(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    outcome = run(model)
    assert (outcome.verdict, outcome.class_) == ("unverified", "io_error")
    assert "can't be read: Input/output error" in outcome.faults[0].sentence


def test_models_in_subfolders_have_their_own_index(tmp_path: Path, model: Path) -> None:
    model.rename(tmp_path / "text_encoder")
    assert run(tmp_path).verdict == "values_only"
    (tmp_path / "text_encoder" / "model-00001-of-00002.safetensors").unlink()
    assert run(tmp_path).class_ == "missing_shard"
