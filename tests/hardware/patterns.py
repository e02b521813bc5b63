"""What the patterns of other tools detect on the same faults: the table in `docs/hardware.md`.

Models of patterns, not the tools themselves: each ordered pair once, one after the other, compared by the
owner of the memory, on the simulated machine. `python tests/hardware/patterns.py` writes the table anew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "roles" / "gpu_diag" / "files"))

from gpu_diag.devices.faults import Fault, fault_names, make_faults
from gpu_diag.devices.memory import Piece
from gpu_diag.devices.protocol import How
from gpu_diag.devices.simulated import SimulatedDevices
from gpu_diag.p2p.plan import make_plan, words_between_devices
from gpu_diag.p2p.probe import StepResult, run_steps
from gpu_diag.p2p.words import Message, Words, choose_nonces

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hardware.md"
BEGIN, END = "<!-- patterns: begin -->", "<!-- patterns: end -->"
_DEVICES, _SEED = 3, 20260808
_BUFFER_WORDS = (6 << 20) // 8
# These tools send the same words between all pairs and every time: what is stale or another's looks right.
_INVISIBLE_BY_REPETITION = ("stale", "crosstalk")


@dataclass(frozen=True)
class Pattern:
    """What a tool sends, what it puts into the destination first, and how it copies."""

    name: str
    words: Words
    destination: int
    methods: tuple[How, ...]


def _ramp(period: int) -> Words:
    return np.arange(_BUFFER_WORDS, dtype=np.uint64) % np.uint64(period) + np.uint64(1)


def _stamps(every: int) -> Words:
    words = np.zeros(_BUFFER_WORDS, np.uint64)
    words[::every] = np.arange(1, words[::every].size + 1, dtype=np.uint64)
    return words


PATTERNS = (
    Pattern("1 KiB of one byte", np.full(128, 0x0101_0101_0101_0101, np.uint64), 0, ("copy_engine",)),
    Pattern("ramp of 4 KiB", _ramp(512), 0, ("copy_engine",)),
    Pattern("period of 2 MiB", _ramp(1 << 18), 0xDEAD_BEEF, ("copy_engine", "store")),
    Pattern("a stamp each 64 KiB", _stamps(8192), 0, ("copy_engine",)),
)


class PatternMachine(SimulatedDevices):
    """A simulated machine into whose memory anything can be written."""

    def put(self, owner: int, begin: int, words: Words) -> None:
        """Explicit words."""
        self._memory[owner].write(Piece(begin, begin + words.size, values=words))

    def put_constant(self, owner: int, begin: int, count: int, word: int) -> None:
        """One word over and over."""
        self._memory[owner].write(Piece(begin, begin + count, constant=word))

    def get(self, owner: int, begin: int, count: int) -> Words:
        """What the owner reads."""
        return np.concatenate([piece.words() for piece in self._memory[owner].read(begin, begin + count)])


def _faults(name: str) -> list[Fault]:
    return make_faults(name, _SEED, _DEVICES, words_between_devices(_DEVICES, 1))


def pattern_detects(pattern: Pattern, name: str) -> bool:
    """Whether a tool with this pattern sees the fault."""
    if name in _INVISIBLE_BY_REPETITION:
        return False
    machine = PatternMachine(_DEVICES, _faults(name))
    count = pattern.words.size
    source_begin, begin = 1 << 22, 1 << 24
    for source, destination in permutations(range(_DEVICES), 2):
        for how in pattern.methods:
            # Memory around the buffers belongs to the same tool and is as the destination's.
            machine.put_constant(source, 0, machine.arena_words, pattern.destination)
            machine.put_constant(destination, 0, machine.arena_words, pattern.destination)
            machine.put(source, source_begin, pattern.words)
            machine.move([Message(0, source, destination, source_begin, begin, count)], how)
            if not np.array_equal(machine.get(destination, begin, count), pattern.words):
                return True
    return False


def ours_detects(name: str) -> bool:
    """Whether this project's check sees it."""
    machine = SimulatedDevices(_DEVICES, _faults(name))
    generator = random.Random(_SEED)
    nonces = choose_nonces(generator)
    steps = make_plan(_DEVICES, lambda a, b: True, machine.methods(), nonces, generator, 1)
    seen: list[bool] = []

    def look(_: int, result: StepResult) -> None:
        seen.append(bool(result.strays or any(message.wrong for message in result.messages)))

    run_steps(machine, steps, lambda *_: None, look)
    return any(seen)


def table(names: Iterable[str]) -> str:
    """The table in Markdown."""
    columns: list[tuple[str, Callable[[str], bool]]] = [
        *((pattern.name, lambda name, chosen=pattern: pattern_detects(chosen, name)) for pattern in PATTERNS),
        ("this project", ours_detects),
    ]
    lines = [
        "| fault | " + " | ".join(title for title, _ in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in names:
        cells = ("yes" if detects(name) else "**no**" for _, detects in columns)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_table(page: str, made: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), table(fault_names())))
