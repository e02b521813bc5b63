"""Read a file once: hash and scan each block while it is in the cache. Memory is a block per file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpu_diag.weights.encodings import (
    BLOCK_BYTES,
    Bytes,
    Encoding,
    Screen,
    first_nan,
    first_nonfinite,
    first_not_positive,
    name_of_value,
    words,
)
from gpu_diag.weights.faults import Fault, shown
from gpu_diag.weights.structure import Tensor

MOST_FAULTS_OF_A_FILE = 20


class Hash(Protocol):
    """What hashlib's objects do."""

    def update(self, data: memoryview, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """The digest so far."""


@dataclass(frozen=True)
class Rule:
    """How a tensor's values are judged. ``lenient``: infinities, and scales that aren't positive, pass."""

    encoding: Encoding
    positive: bool = False
    lenient: bool = False

    @property
    def needs_values(self) -> bool:
        """Whether there is anything to find in the values."""
        return self.encoding.can_be_nonfinite or self.positive

    def describe(self) -> str:
        """The rule as a text that changes when the rule does."""
        return f"{self.encoding}{self.positive}{self.lenient}"


class Blocks:
    """Reads parts of an open file block by block into one buffer, hashing what it reads."""

    def __init__(self, descriptor: int, hashes: Iterable[Hash], progress: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._hashes = tuple(hashes)
        self._progress = progress
        self._buffer: Bytes = np.empty(BLOCK_BYTES, np.uint8)
        self._view = self._buffer.data
        self._screens: dict[Encoding, Screen] = {}

    def read(self, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Offset and bytes of each block of ``[begin, end)``; each is valid until the next is taken.

        Raises OSError, also where the file ends before ``end``.
        """
        offset = begin
        while offset < end:
            length = min(BLOCK_BYTES, end - offset)
            block = self._view if length == BLOCK_BYTES else self._view[:length]
            count = os.preadv(self._descriptor, [block], offset)
            if count != length:
                self._fill(block[count:], offset + count, count)
            for digest in self._hashes:
                digest.update(block)
            self._progress(length)
            yield offset, self._buffer if length == BLOCK_BYTES else self._buffer[:length]
            offset += length

    def screen(self, encoding: Encoding) -> Screen:
        """The fast look at the block that was read last."""
        if encoding not in self._screens:
            self._screens[encoding] = Screen(encoding, self._buffer)
        return self._screens[encoding]

    def _fill(self, block: memoryview, offset: int, count: int) -> None:
        """The rest of a block of which only a part came at once."""
        while len(block):
            if count == 0:
                raise OSError(0, "it became shorter while it was read")
            count = os.preadv(self._descriptor, [block], offset)
            block, offset = block[count:], offset + count


def hash_range(blocks: Blocks, begin: int, end: int) -> None:
    """Read a part of a file for its hash alone."""
    for _ in blocks.read(begin, end):
        pass


def scan(
    blocks: Blocks, file: str, tensors: Iterable[Tensor], rules: Mapping[str, Rule | None]
) -> list[Fault]:
    """Scan tensors in the order of their place in the file; one fault a tensor, at most twenty a file.

    A tensor without a rule is read (for the hash) and not judged. Raises OSError where reading fails.
    """
    faults: list[Fault] = []
    for tensor in tensors:
        fault = _scan_tensor(blocks, file, tensor, rules[tensor.name])
        if fault is not None and len(faults) < MOST_FAULTS_OF_A_FILE:
            faults.append(fault)
    return faults


def _scan_tensor(blocks: Blocks, file: str, tensor: Tensor, rule: Rule | None) -> Fault | None:
    fault = None
    screen = blocks.screen(rule.encoding) if rule is not None and rule.encoding.can_be_nonfinite else None
    for offset, block in blocks.read(tensor.begin, tensor.end):
        if fault is not None or rule is None:
            continue  # read on for the hash
        if rule.positive or (screen is not None and not screen.is_finite(block.size)):
            fault = _fault_in(block, offset, rule, file, tensor)
    return fault


def _fault_in(block: Bytes, offset: int, rule: Rule, file: str, tensor: Tensor) -> Fault | None:
    encoding = rule.encoding
    index = first_nonfinite(block, encoding)
    if index is not None and rule.lenient:
        index = first_nan(block, encoding)
    if index is not None:
        return _value_fault("not_finite", block, index, offset, encoding, file, tensor)
    if rule.positive and not rule.lenient:
        index = first_not_positive(block, encoding)
        if index is not None:
            return _value_fault("bad_scale", block, index, offset, encoding, file, tensor)
    return None


def _value_fault(
    class_: str, block: Bytes, index: int, offset: int, encoding: Encoding, file: str, tensor: Tensor
) -> Fault:
    position = offset + index * encoding.word_bytes
    element = (position - tensor.begin) * 8 // encoding.bits
    word = int(words(block, encoding)[index])
    what = name_of_value(word, encoding) if class_ == "not_finite" else "a scale that isn't positive"
    label = shown(tensor.name)
    sentence = f"{label} in {file} holds {what} at element {element} (byte {position} of the file)"
    return Fault(class_, sentence, file, label, position)


def new_hashes(algorithm: str | None, size: int) -> dict[str, Hash]:
    """The hashes to take of a file: sha256 always, and git's blob id where that is what was recorded."""
    hashes: dict[str, Hash] = {"sha256": hashlib.sha256()}
    if algorithm == "git":
        git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        hashes["git"] = git
    return hashes
