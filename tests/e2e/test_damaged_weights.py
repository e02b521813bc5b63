"""Models damaged in different ways: the playbook says which file, where and why, and deploys none of them.

The damage is done to copies of a model of the rehearsal, so that nothing but the damage is wrong with them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rehearsal_box import STATE, Deployed, Run, container_ids

MODELS = Path("/var/lib/vllm-frontdoor/models")
ORIGINAL = MODELS / "all-MiniLM-L6-v2"
WEIGHTS = "model.safetensors"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
NAN = struct.pack("<f", float("nan"))

Header = dict[str, dict[str, Any]]


def read_header(path: Path) -> tuple[Header, int]:
    """The header of a safetensors file, and where its data begins."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: Header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def write_shard(source: Path, target: Path, names: list[str]) -> None:
    """A safetensors file with some tensors of another, in the order given."""
    header, begin = read_header(source)
    part: Header = {}
    position = 0
    for name in names:
        first, last = header[name]["data_offsets"]
        part[name] = {**header[name], "data_offsets": [position, position + last - first]}
        position += last - first
    text = json.dumps(part).encode()
    with source.open("rb") as read, target.open("wb") as written:
        written.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            first, last = header[name]["data_offsets"]
            read.seek(begin + first)
            written.write(read.read(last - first))


def shard(folder: Path) -> dict[str, str]:
    """Split the model in two with an index, floats last; the index's map."""
    header, _ = read_header(folder / WEIGHTS)
    names = sorted(header, key=lambda name: (header[name]["dtype"] == "F32", name))
    half = len(names) // 2
    homes = dict(zip(SHARDS, (names[:half], names[half:]), strict=True))
    for name, tensors in homes.items():
        write_shard(folder / WEIGHTS, folder / name, tensors)
    (folder / WEIGHTS).unlink()
    weight_map = {tensor: name for name, tensors in homes.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def nan_in_the_last_element(folder: Path) -> dict[str, Any]:
    shard(folder)
    last = folder / SHARDS[1]
    header, _ = read_header(last)
    name, entry = max(header.items(), key=lambda item: int(item[1]["data_offsets"][1]))
    assert entry["dtype"] == "F32"
    position = last.stat().st_size - len(NAN)
    overwrite(last, position, NAN)
    return {"class": "not_finite", "file": SHARDS[1], "tensor": name, "offset": position}


def flipped_byte_and_a_known_hash(folder: Path) -> dict[str, Any]:
    path = folder / WEIGHTS
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = folder / ".cache" / "huggingface" / "download" / f"{WEIGHTS}.metadata"
    record.parent.mkdir(parents=True)
    record.write_text(f"{'0' * 40}\n{digest}\n{path.stat().st_mtime + 3600}\n")
    header, begin = read_header(path)
    name = next(name for name, entry in header.items() if entry["dtype"] == "F32")
    position = begin + int(header[name]["data_offsets"][0])
    # The lowest bits of a mantissa: every value stays finite.
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x10]))
    return {"class": "hash_differs", "file": WEIGHTS, "tensor": None, "offset": None}


def truncated(folder: Path) -> dict[str, Any]:
    path = folder / WEIGHTS
    header, _ = read_header(path)
    name = max(header, key=lambda one: int(header[one]["data_offsets"][1]))
    size = path.stat().st_size - 1
    with path.open("r+b") as file:
        file.truncate(size)
    return {"class": "truncated", "file": WEIGHTS, "tensor": name, "offset": size}


def key_missing_from_the_index(folder: Path) -> dict[str, Any]:
    weight_map = shard(folder)
    name = sorted(weight_map)[7]
    home = weight_map.pop(name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return {"class": "not_in_index", "file": home, "tensor": name, "offset": None}


DAMAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "nan": nan_in_the_last_element,
    "flipped": flipped_byte_and_a_known_hash,
    "truncated": truncated,
    "unlisted": key_missing_from_the_index,
}


@dataclass(frozen=True)
class Outcome:
    """What the playbook printed, the fault that was made in each model, and the containers before."""

    run: Run
    made: dict[str, dict[str, Any]]
    folders: dict[str, Path]
    containers: dict[str, str]


def newest_evidence(folder: Path) -> dict[str, Any]:
    """The newest document on a model folder."""
    documents = [json.loads(path.read_text()) for path in sorted((STATE / "evidence/weights").glob("*.json"))]
    found = [document for document in documents if document["details"]["model"] == str(folder)]
    assert found, f"no evidence on {folder}"
    return dict(found[-1])


@pytest.fixture(scope="module")
def outcome(deployed: Deployed) -> Iterator[Outcome]:
    """The site playbook, asked to deploy a model with each damage, and one that is whole in the same form."""
    folders = {name: MODELS / f"damaged-{name}" for name in (*DAMAGES, "none")}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ORIGINAL, folder)
    try:
        made = {name: damage(folders[name]) for name, damage in DAMAGES.items()}
        shard(folders["none"])
        services = {
            name: {"slot": slot, "model": f"damaged-{name}", "task": "embed", "devices": ["right"]}
            for slot, name in enumerate(folders, 11)
        }
        before = container_ids()
        variables = json.dumps({"vllm_service_services": services})
        yield Outcome(deployed.box.refuse("rehearse", "-e", variables), made, folders, before)
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_fails_for_the_right_reason(outcome: Outcome, damage: str) -> None:
    document = newest_evidence(outcome.folders[damage])
    assert document["verdict"] == "failed"
    fault = outcome.made[damage]
    assert document["class"] == fault["class"]
    (found,) = document["details"]["faults"]
    assert {key: found[key] for key in fault} == fault
    assert found["sentence"] in document["evidence"]
    assert f"{outcome.folders[damage]}: failed: {found['sentence']}" in outcome.run.output
    assert f"The verdict on the weights in {outcome.folders[damage]} is failed" in outcome.run.output


def test_the_same_model_without_damage_is_not_refused(outcome: Outcome) -> None:
    document = newest_evidence(outcome.folders["none"])
    assert (document["verdict"], document["class"], document["evidence"]) == ("values_only", None, [])
    assert f"weights in {outcome.folders['none']} " not in outcome.run.output


def test_nothing_of_them_is_deployed(outcome: Outcome) -> None:
    assert container_ids() == outcome.containers


def test_the_rehearsals_own_models_were_checked_by_the_same_playbook(deployed: Deployed) -> None:
    for name in ("SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"):
        document = newest_evidence(MODELS / name)
        assert (document["verdict"], document["class"]) == ("values_only", None)
        assert document["details"]["tensors"] > 100
        assert document["tool"]["image_digest"].startswith("sha256:")
