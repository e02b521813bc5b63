"""Shards against their index, both ways, and shards against the number that their names promise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set

from gpu_diag.weights.faults import Fault, shown
from gpu_diag.weights.structure import DuplicateKeyError, without_duplicates

INDEX_SUFFIX = ".safetensors.index.json"
LARGEST_INDEX_BYTES = 64 * 1024 * 1024
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")


def parse_index(text: bytes, name: str) -> tuple[dict[str, str], list[Fault]]:
    """The ``weight_map`` of an index (tensor to shard), and what is wrong with the index itself."""
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=without_duplicates)
    except DuplicateKeyError as error:
        key = shown(str(error))
        return {}, [Fault("duplicate_key", f"the index {name} has {key} twice", name, key)]
    except (ValueError, RecursionError):
        return {}, [Fault("bad_index", f"the index {name} is not JSON in UTF-8", name)]
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        return {}, [Fault("bad_index", f"the index {name} has no weight_map from tensors to shards", name)]
    outside = sorted({shown(shard) for shard in weight_map.values() if not _is_plain_name(shard)})
    if outside:
        sentence = f"the index {name} names {outside[0]}, which is not a file of its own folder"
        return {}, [Fault("bad_index", sentence, name)]
    return weight_map, []


def _is_plain_name(name: str) -> bool:
    return (
        bool(name) and "/" not in name and "\\" not in name and "\0" not in name and not name.startswith(".")
    )


def index_faults(
    index: str, weight_map: Mapping[str, str], files: Set[str], tensors: Mapping[str, Set[str]]
) -> Iterable[Fault]:
    """What an index and its shards disagree in.

    ``files`` are the files of the index's folder that are there, ``tensors`` the names in each shard whose
    header could be read. Names of files are relative to that folder.
    """
    listed = set(weight_map.values())
    for shard in sorted(listed - files):
        yield Fault("missing_shard", f"the shard {shown(shard)} that {index} names is missing", shown(shard))
    for tensor, shard in weight_map.items():
        if shard in tensors and tensor not in tensors[shard]:
            label = shown(tensor)
            yield Fault("missing_tensor", f"{index} says that {label} is in {shard}: it isn't", shard, label)
    for shard in sorted(listed & set(tensors)):
        for tensor in sorted(tensors[shard]):
            if weight_map.get(tensor) != shard:
                label = shown(tensor)
                yield Fault("not_in_index", f"{label} of {shard} is not listed in {index}", shard, label)


def count_faults(files: Iterable[str]) -> Iterable[Fault]:
    """Shards named ``k-of-N`` of which the set isn't complete. Names may have a folder before them."""
    families: dict[tuple[str, int, str], set[int]] = {}
    for name in files:
        match = _SHARD.fullmatch(name)
        if match:
            family = (match["stem"], int(match["count"]), match["suffix"])
            families.setdefault(family, set()).add(int(match["number"]))
    for (stem, count, suffix), numbers in sorted(families.items()):
        # Some tools count the shards from 0.
        first = 0 if 0 in numbers else 1
        missing = _first_missing(numbers, first, count)
        if missing is not None:
            name = f"{stem}-{missing:05d}-of-{count:05d}{suffix}"
            yield Fault(
                "missing_shard", f"the shard {name} is missing: {len(numbers)} of {count} are there", name
            )


def _first_missing(numbers: Set[int], first: int, count: int) -> int | None:
    return next((number for number in range(first, first + count) if number not in numbers), None)


def unlisted_shards(index: str, weight_map: Mapping[str, str], files: Iterable[str]) -> Iterable[Fault]:
    """Shards of the index's own family (same stem, same N) that the index doesn't name."""
    listed = set(weight_map.values())
    families = {(m["stem"], m["count"]) for m in map(_SHARD.fullmatch, listed) if m}
    for name in sorted(set(files) - listed):
        match = _SHARD.fullmatch(name)
        if match and match["suffix"] == ".safetensors" and (match["stem"], match["count"]) in families:
            yield Fault("shard_not_listed", f"the shard {name} is not listed in {index}", name)
