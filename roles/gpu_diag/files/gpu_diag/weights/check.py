"""The weights probe over one model folder: what is read, what is kept from before, and the verdict."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import queue
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gpu_diag.hostfacts.gpu_diag_weights_state import (
    WEIGHTS_TOOL_VERSION,
    TooManyFilesError,
    file_states,
    same_file,
)
from gpu_diag.weights import index as shard_index
from gpu_diag.weights.encodings import ENCODINGS, F8_E8M0
from gpu_diag.weights.faults import Fault, shown
from gpu_diag.weights.gguf import check_gguf
from gpu_diag.weights.hub import Recorded, recorded_checksum
from gpu_diag.weights.quantised import Scales, find_scales
from gpu_diag.weights.scan import Blocks, Rule, hash_range, new_hashes, scan
from gpu_diag.weights.structure import Structure, Tensor, read_structure

Json = dict[str, object]

# -Inf in a mask that is stored as a buffer is meant so.
ALLOWED_BY_DEFAULT = ("*attn_mask", "*attention_mask", "*causal_mask", "*.masked_bias", "*.mask")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Faults of these classes prove nothing against the files: they could not be judged.
_UNJUDGED = {
    "changed_while_read",
    "could_not_run",
    "header_too_large",
    "io_error",
    "io_timeout",
    "no_weights",
    "unknown_dtype",
    "unsafe_format",
}
_FROM_BEST_TO_WORST = ("verified", "values_only", "structure_only", "unverified", "failed")
_MOST_FAULTS = 100


@dataclass(frozen=True)
class Options:
    """How to check. ``previous`` is the ``details`` of an earlier document of the same folder."""

    rehash: bool = False
    hashing: bool = True
    jobs: int = 2
    allowed: Sequence[str] = ALLOWED_BY_DEFAULT
    previous: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The verdict on a folder, its class, the faults, and the details for the document."""

    verdict: str
    class_: str | None
    faults: tuple[Fault, ...]
    details: Json


class Progress:
    """Bytes read and to be read, and when something last moved. Written by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total_bytes = 0
        self.done_bytes = 0
        self.moved_at = time.monotonic()

    def expect(self, count: int) -> None:
        """There are so many bytes more to read."""
        with self._lock:
            self.total_bytes += count

    def advance(self, count: int) -> None:
        """So many bytes were read."""
        with self._lock:
            self.done_bytes += count
            self.moved_at = time.monotonic()


@dataclass
class _File:
    """A file under check: what is known before its bytes are read, and what came out of them."""

    name: str
    state: Json | None
    kind: str
    recorded: Recorded | None = None
    structure: Structure | None = None
    tensor_count: int = 0
    faults: list[Fault] = field(default_factory=list)
    sha256: str | None = None
    matches: bool | None = None
    kept: bool = False
    edited: bool = False
    rules: str = ""

    @property
    def size(self) -> int:
        size = self.state["size"] if self.state is not None else 0
        return size if isinstance(size, int) else 0


def check_folder(folder: str, options: Options, progress: Progress) -> Outcome:
    """Check every file of a model folder. What can't be read becomes a fault, never an exception."""
    try:
        states = file_states(folder)
    except TooManyFilesError as error:
        return _outcome(folder, [], [Fault("could_not_run", str(error), folder)])
    except OSError as error:
        sentence = f"the model folder {folder} can't be read: {error.strerror}"
        return _outcome(folder, [], [Fault("io_error", sentence, folder)])
    files = [_File(name, state, _kind(name)) for name, state in states.items()]
    for file in files:
        _prepare(Path(folder), file)
    faults = _set_faults(Path(folder), files)
    dtypes = {tensor.name: tensor.dtype for file in files for tensor in _tensors(file)}
    scales = find_scales(dtypes)
    faults += _missing_scales(files, scales)
    _read_all(Path(folder), files, scales, options, progress)
    if not any(file.kind in ("safetensors", "gguf", "pickle") for file in files):
        faults.append(Fault("no_weights", f"there are no weights in {folder}", folder))
    return _outcome(folder, files, faults)


def _kind(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".safetensors":
        return "safetensors"
    if suffix == ".gguf":
        return "gguf"
    if name.endswith(shard_index.INDEX_SUFFIX):
        return "index"
    return "pickle" if suffix in _PICKLES else "other"


def _tensors(file: _File) -> tuple[Tensor, ...]:
    return file.structure.tensors if file.structure is not None else ()


def _prepare(folder: Path, file: _File) -> None:
    """What can be known of a file without reading its data."""
    if file.state is None:
        target = _target(folder / file.name)
        sentence = f"{shown(file.name)} is a broken link: {target} isn't there"
        file.faults.append(Fault("broken_link", sentence, shown(file.name)))
        return
    file.recorded = recorded_checksum(folder, file.name)
    if file.kind == "safetensors":
        with _explained(file), _opened(folder / file.name) as descriptor:
            file.structure = read_structure(descriptor, shown(file.name), file.size)
            file.tensor_count = len(file.structure.tensors)
            file.faults += file.structure.faults
    elif file.kind == "gguf":
        with _explained(file), _opened(folder / file.name) as descriptor:
            file.tensor_count, faults = check_gguf(descriptor, shown(file.name), file.size)
            file.faults += faults


def _target(path: Path) -> str:
    try:
        return shown(str(path.readlink()))
    except OSError:
        return "its target"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Without blocking: a named pipe that poses as a file would never open.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _explained(file: _File) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = shown(file.name)
        file.faults.append(Fault("io_error", f"{name} can't be read: {error.strerror or error}", name))


def _set_faults(folder: Path, files: Sequence[_File]) -> list[Fault]:
    """Faults of the set of files: indexes against shards, and shards against their count."""
    faults = list(
        shard_index.count_faults(file.name for file in files if file.kind in ("safetensors", "gguf"))
    )
    for file in files:
        if file.kind == "index" and file.state is not None:
            faults += _index_faults(folder, file, files)
    known = {(fault.class_, fault.file, fault.tensor): fault for fault in faults}
    return list(known.values())


def _index_faults(folder: Path, index: _File, files: Sequence[_File]) -> list[Fault]:
    if index.size > shard_index.LARGEST_INDEX_BYTES:
        return [
            Fault(
                "bad_index",
                f"the index {index.name} has {index.size} bytes: no index is so large",
                index.name,
            )
        ]
    text = b""
    with _explained(index), _opened(folder / index.name) as descriptor:
        text = os.pread(descriptor, index.size, 0)
    if index.faults:
        return []
    weight_map, faults = shard_index.parse_index(text, index.name)
    if faults:
        return faults
    parent = index.name[: -len(PurePosixPath(index.name).name)]
    here = {f.name.removeprefix(parent): f for f in files if f.name.startswith(parent)}
    tensors = {
        name: {tensor.name for tensor in _tensors(file)}
        for name, file in here.items()
        if file.structure is not None and not file.faults
    }
    present = set(here)
    return [
        *shard_index.index_faults(index.name, weight_map, present, tensors),
        *shard_index.unlisted_shards(index.name, weight_map, present),
    ]


def _missing_scales(files: Sequence[_File], scales: Scales) -> list[Fault]:
    homes = {tensor.name: file.name for file in files for tensor in _tensors(file)}
    return [
        Fault(
            "missing_scale",
            f"{shown(weight)} in {homes[weight]} is quantised and its scale {shown(scale)} is nowhere",
            homes[weight],
            shown(weight),
        )
        for weight, scale in scales.missing[:_MOST_FAULTS]
    ]


def _read_all(
    folder: Path, files: Sequence[_File], scales: Scales, options: Options, progress: Progress
) -> None:
    """Read what must be read, several files at once, in daemons: a hanging read can't hold the exit."""
    waiting: queue.SimpleQueue[_File] = queue.SimpleQueue()
    chosen = [file for file in files if _needs_reading(file, scales, options)]
    for file in sorted(chosen, key=lambda one: one.size, reverse=True):
        progress.expect(file.size)
        waiting.put(file)

    def work() -> None:
        while True:
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            with _explained(file):
                _read(folder, file, scales, options, progress)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(options.jobs, len(chosen)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _needs_reading(file: _File, scales: Scales, options: Options) -> bool:
    if file.state is None or file.faults:
        return False
    if file.kind == "other" and file.recorded is None:
        return False  # nothing to compare with, and no values: size and time of change are noted
    file.rules = _rules_digest(file, scales, options)
    return options.rehash or not _keep(file, options)


def _keep(file: _File, options: Options) -> bool:
    """Take over the earlier result on a file that is the same and was good."""
    before = _before(file, options)
    if before is None or before.get("good") is not True or before.get("rules") != file.rules:
        return False
    digest = before.get("sha256")
    if not isinstance(digest, str) and options.hashing:
        return False
    file.sha256 = digest if isinstance(digest, str) else None
    matches = before.get("matches")
    file.matches = matches if isinstance(matches, bool) else None
    file.edited = before.get("edited") is True
    file.kept = True
    return True


def _before(file: _File, options: Options) -> Mapping[str, object] | None:
    records = options.previous.get("files")
    before = records.get(file.name) if isinstance(records, Mapping) else None
    return before if isinstance(before, Mapping) and same_file(before, file.state) else None


def _rules_digest(file: _File, scales: Scales, options: Options) -> str:
    """Changes when the same bytes would be judged otherwise: other rules, other checksum to compare with."""
    digest = hashlib.sha256(f"{WEIGHTS_TOOL_VERSION} {file.recorded}".encode())
    for tensor in _tensors(file):
        rule = _rule(tensor, scales, options.allowed)
        digest.update(f"{rule.describe() if rule else None}\n".encode())
    return digest.hexdigest()


def _rule(tensor: Tensor, scales: Scales, allowed: Sequence[str]) -> Rule | None:
    encoding = F8_E8M0 if tensor.name in scales.e8m0_bytes else ENCODINGS.get(tensor.dtype)
    if encoding is None:
        return None
    lenient = any(fnmatch.fnmatchcase(tensor.name, pattern) for pattern in allowed)
    rule = Rule(encoding, positive=tensor.name in scales.positive and encoding.is_float, lenient=lenient)
    return rule if rule.needs_values else None


def _read(folder: Path, file: _File, scales: Scales, options: Options, progress: Progress) -> None:
    with _opened(folder / file.name) as descriptor:
        algorithm = file.recorded.algorithm if file.recorded is not None else None
        hashes = new_hashes(algorithm, file.size) if options.hashing else {}
        blocks = Blocks(descriptor, hashes.values(), progress.advance)
        if file.structure is None:
            if hashes:
                hash_range(blocks, 0, file.size)
        else:
            _read_tensors(blocks, file, file.structure, scales, options)
        if os.fstat(descriptor).st_mtime_ns != (file.state or {}).get("mtime_ns"):
            name = shown(file.name)
            file.faults.append(Fault("changed_while_read", f"{name} was written to while it was read", name))
    if hashes:
        _compare(file, {name: digest.hexdigest() for name, digest in hashes.items()}, _before(file, options))


def _read_tensors(
    blocks: Blocks, file: _File, structure: Structure, scales: Scales, options: Options
) -> None:
    rules = {tensor.name: _rule(tensor, scales, options.allowed) for tensor in structure.tensors}
    if options.hashing:
        hash_range(blocks, 0, structure.data_begin)
    tensors = (tensor for tensor in structure.tensors if options.hashing or rules[tensor.name] is not None)
    file.faults += scan(blocks, shown(file.name), tensors, rules)
    file.faults += _unknown_dtypes(file)


def _unknown_dtypes(file: _File) -> Iterator[Fault]:
    unknown = next((tensor for tensor in _tensors(file) if tensor.dtype not in ENCODINGS), None)
    if unknown is not None:
        label, name = shown(unknown.name), shown(file.name)
        sentence = f"{label} in {name} is of dtype {shown(unknown.dtype)}, which this tool doesn't know"
        yield Fault("unknown_dtype", sentence, name, label, unknown.begin)


def _compare(file: _File, digests: Mapping[str, str], before: Mapping[str, object] | None) -> None:
    name = shown(file.name)
    file.sha256 = digests["sha256"]
    earlier = before.get("sha256") if before is not None else None
    if isinstance(earlier, str) and earlier != file.sha256:
        sentence = (
            f"{name} has the sha256 {file.sha256}, and had {earlier} when it was last read, though its size "
            "and its time of change are the same: the disk, the network file system or RAM corrupts"
        )
        file.faults.append(Fault("hash_changed", sentence, name))
    if file.recorded is None:
        return
    file.matches = digests[file.recorded.algorithm] == file.recorded.digest
    if file.matches:
        return
    mtime = (file.state or {}).get("mtime_ns")
    if file.kind in ("other", "index") and isinstance(mtime, int) and file.recorded.edited_since(mtime):
        file.edited = True
        return
    sentence = (
        f"{name} has the {file.recorded.algorithm} hash {digests[file.recorded.algorithm]}, "
        f"but {file.recorded.source} says {file.recorded.digest}"
    )
    file.faults.append(Fault("hash_differs", sentence, name))


def _outcome(folder: str, files: Sequence[_File], faults: Sequence[Fault]) -> Outcome:
    everything = [*faults, *(fault for file in files for fault in file.faults)]
    everything += (
        [] if any(fault.class_ == "no_weights" for fault in everything) else _unjudged_formats(files)
    )
    verdict, class_ = _verdict(files, everything)
    details: Json = {
        "model": folder,
        "bytes": sum(file.size for file in files),
        "tensors": sum(file.tensor_count for file in files),
        "files": {file.name: _record(file) for file in files},
        "faults": [fault.document() for fault in everything[:_MOST_FAULTS]],
        "fault_count": len(everything),
    }
    return Outcome(verdict, class_, tuple(everything[:_MOST_FAULTS]), details)


def _unjudged_formats(files: Sequence[_File]) -> list[Fault]:
    """Pickles can't be judged safely; they count only where an engine would load them."""
    if any(file.kind in ("safetensors", "gguf") for file in files):
        return []
    return [
        Fault(
            "unsafe_format",
            f"{shown(file.name)} is a pickle, which is only hashed and never opened",
            shown(file.name),
        )
        for file in files
        if file.kind == "pickle"
    ]


def _verdict(files: Sequence[_File], faults: Sequence[Fault]) -> tuple[str, str | None]:
    proven = next((fault for fault in faults if fault.class_ not in _UNJUDGED), None)
    if proven is not None:
        return "failed", proven.class_
    if faults:
        return "unverified", faults[0].class_
    loaded = [file for file in files if file.kind == "safetensors"] or [f for f in files if f.kind == "gguf"]
    return max((_file_verdict(file) for file in loaded), key=_FROM_BEST_TO_WORST.index), None


def _file_verdict(file: _File) -> str:
    if file.kind == "gguf":
        return "structure_only"
    return "verified" if file.matches else "values_only"


def _record(file: _File) -> Json | None:
    if file.state is None:
        return None
    return {
        **file.state,
        "kind": file.kind,
        "tensors": file.tensor_count,
        "sha256": file.sha256,
        "recorded": file.recorded.digest if file.recorded is not None else None,
        "recorded_by": file.recorded.source if file.recorded is not None else None,
        "matches": file.matches,
        "edited": file.edited,
        "good": not file.faults,
        "rules": file.rules,
        "kept_from_before": file.kept,
    }


def could_not_read(folder: str, class_: str, sentence: str) -> Outcome:
    """The outcome where the check itself came to no end."""
    return _outcome(folder, [], [Fault(class_, sentence, folder)])
