"""What a probe asks of devices. Everything that decides stays above this line, every fault acts below it.

Positions and counts are in words of 64 bits. Each device has one arena, memory that only the probe uses; the
host has a pinned one. All words are compared as integers by the owner of the memory that they lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gpu_diag.p2p.words import Message, Positions, Words

How = Literal["copy_engine", "store", "pull", "ipc", "staged"]

# Beyond the largest distance that a wrong page is told by (1 GiB), and within 2 GiB, so that engines can
# stay.
ARENA_WORDS = (1 << 30) // 8 + (768 << 20) // 8
HOST_ARENA_WORDS = (64 << 20) // 8
LARGEST_SAMPLE = 4096


class DeviceLostError(Exception):
    """A device went away while it was used; the message is a sentence."""


class NoDevicesError(Exception):
    """The devices can't be used at all (no driver, no torch, too little memory); the message is a
    sentence."""


@dataclass(frozen=True)
class Differences:
    """Words that aren't what they should be: how many, and a sample of whole pages of them, spread evenly."""

    total: int
    positions: Positions
    words: Words


@dataclass(frozen=True)
class Device:
    """What is known of a device; None where it has none."""

    name: str
    uuid: str | None
    serial: str | None
    pci_address: str | None


class Devices(Protocol):
    """A set of devices. Methods raise DeviceLostError when one goes away."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices, by number."""

    @property
    def arena_words(self) -> int:
        """Size of each device's arena."""

    def peer_access(self, source: int, destination: int) -> bool:
        """Whether the driver offers the source a way into the destination's memory."""

    def methods(self) -> Sequence[How]:
        """The ways to move words that these devices have (without ``staged``, which all have)."""

    def untested(self) -> Sequence[str]:
        """Sentences on ways that these devices should have and that could not be tried."""

    def fill(self, owner: int, begin: int, count: int, first_word: int) -> None:
        """The owner writes ``first_word``, ``first_word + 1`` … into its own arena."""

    def move(self, messages: Sequence[Message], how: How) -> None:
        """Move all messages at the same time, each from its source's arena to its destination's, and wait."""

    def differing(self, owner: int, begin: int, count: int, first_word: int) -> Differences:
        """The owner compares its own memory with ``first_word``, ``first_word + 1`` …"""

    def read_back(self, message: Message) -> int | None:
        """How many words of a message the *source* sees wrong in the destination's memory; None: can't be
        asked."""
