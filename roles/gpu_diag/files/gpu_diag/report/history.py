"""The matrices of all runs, by boot, and what moved between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Json = dict[str, object]
Pair = tuple[int, int]

_BAD = ("corrupt", "hang")


@dataclass(frozen=True)
class Gpu:
    """A GPU in one run: its number then, the board (serial, else UUID) and the slot (PCI address)."""

    number: int
    board: str
    slot: str


@dataclass(frozen=True)
class Run:
    """One p2p document: when, in which boot, on which GPUs, and the verdict on each ordered pair."""

    at: str
    boot_id: str
    kernel: str | None
    kernel_command_line: str | None
    verdict: str
    class_: str | None
    gpus: tuple[Gpu, ...]
    pairs: Mapping[Pair, str]

    def bad_pairs(self) -> frozenset[Pair]:
        """Ordered pairs that corrupt or hang."""
        return frozenset(pair for pair, verdict in self.pairs.items() if verdict in _BAD)

    def by_source(self) -> dict[int, str]:
        """For each source ``corrupt``, ``clean``, ``mixed`` or ``unknown``."""
        return {gpu.number: _common(self._verdicts(gpu.number, 0)) for gpu in self.gpus}

    def by_destination(self) -> dict[int, str]:
        """For each destination the same."""
        return {gpu.number: _common(self._verdicts(gpu.number, 1)) for gpu in self.gpus}

    def _verdicts(self, number: int, side: int) -> set[str]:
        return {verdict for pair, verdict in self.pairs.items() if pair[side] == number}

    def pattern(self) -> str:
        """What sorts bad from good: ``none``, ``all``, ``source``, ``destination`` or ``pair``."""
        bad = self.bad_pairs()
        if not bad:
            return "none"
        if len(bad) == len(self.pairs):
            return "all"
        if "mixed" not in self.by_source().values():
            return "source"
        return "destination" if "mixed" not in self.by_destination().values() else "pair"


def _common(verdicts: set[str]) -> str:
    tested = verdicts & {"clean", *_BAD}
    if not tested:
        return "unknown"
    if tested == {"clean"}:
        return "clean"
    return "mixed" if "clean" in tested else "corrupt"


@dataclass(frozen=True)
class Boot:
    """All runs of one boot, in their order."""

    boot_id: str
    runs: tuple[Run, ...]

    @property
    def last(self) -> Run:
        """The newest run."""
        return self.runs[-1]


def runs_of(documents: Iterable[Mapping[str, object]]) -> list[Run]:
    """The runs in documents of the kind p2p, the oldest first; what tested no pair is left out."""
    runs = [run for document in documents if (run := _run(document)) is not None]
    return sorted(runs, key=lambda run: run.at)


def _run(document: Mapping[str, object]) -> Run | None:
    details, identity = _object(document.get("details")), _object(document.get("identity"))
    pairs = {
        (source, destination): str(pair.get("verdict"))
        for pair in _objects(details.get("pairs"))
        if isinstance(source := pair.get("source"), int)
        and isinstance(destination := pair.get("destination"), int)
    }
    if not pairs:
        return None
    known = {str(gpu.get("uuid")): gpu for gpu in _objects(identity.get("gpus"))}
    return Run(
        at=str(document.get("finished_at")),
        boot_id=str(identity.get("boot_id")),
        kernel=_text(identity.get("kernel")),
        kernel_command_line=_text(identity.get("kernel_command_line")),
        verdict=str(document.get("verdict")),
        class_=_text(document.get("class")),
        gpus=tuple(
            _gpu(number, device, known) for number, device in enumerate(_objects(details.get("devices")))
        ),
        pairs=pairs,
    )


def _gpu(number: int, device: Json, known: Mapping[str, Json]) -> Gpu:
    uuid = _text(device.get("uuid"))
    described = known.get(uuid or "", {})
    serial = _text(described.get("serial")) or _text(device.get("serial"))
    slot = _text(described.get("pci_address")) or _text(device.get("pci_address"))
    return Gpu(number, serial or uuid or f"GPU {number}", slot or f"slot of GPU {number}")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def boots_of(runs: Sequence[Run]) -> list[Boot]:
    """Runs by boot, the oldest boot first."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.boot_id, []).append(run)
    return [Boot(boot_id, tuple(found)) for boot_id, found in grouped.items()]


def changes(before: Run, after: Run) -> list[str]:
    """Sentences on what changed from one run to another, by source first."""
    sentences = []
    old, new = before.by_source(), after.by_source()
    for number in sorted(set(old) & set(new)):
        if old[number] == new[number]:
            if new[number] == "corrupt":
                sentences.append(f"GPU {number} as source stayed corrupt.")
            continue
        sentences.append(f"GPU {number} as source went from {old[number]} to {new[number]}.")
    boards = {gpu.slot: gpu.board for gpu in before.gpus}
    sentences += [
        f"The board in slot {gpu.slot} is another one."
        for gpu in after.gpus
        if gpu.slot in boards and boards[gpu.slot] != gpu.board
    ]
    if before.kernel != after.kernel:
        sentences.append(f"The kernel changed from {before.kernel} to {after.kernel}.")
    if before.kernel_command_line != after.kernel_command_line:
        sentences.append("The kernel command line changed.")
    return sentences


@dataclass(frozen=True)
class Movement:
    """What the bad set did between two boots.

    ``kind``: stayed, moved, follows_board, follows_slot, gone or came.
    """

    kind: str
    before: Run
    after: Run


def movements(boots: Sequence[Boot]) -> list[Movement]:
    """What the bad set did from each boot to the next."""
    return [Movement(_movement(a.last, b.last), a.last, b.last) for a, b in pairwise(boots)]


def _movement(before: Run, after: Run) -> str:
    if not before.bad_pairs() or not after.bad_pairs():
        if before.bad_pairs():
            return "gone"
        return "came" if after.bad_pairs() else "stayed"
    by_slot, by_board = _bad_ends(before, after, "slot"), _bad_ends(before, after, "board")
    same_slots, same_boards = by_slot[0] == by_slot[1], by_board[0] == by_board[1]
    if same_slots and same_boards:
        return "stayed"
    if same_boards:
        return "follows_board"
    return "follows_slot" if same_slots else "moved"


def _bad_ends(before: Run, after: Run, key: str) -> tuple[frozenset[object], frozenset[object]]:
    """The bad units of both runs, by board or slot: sources where these sort both runs, else ordered
    pairs."""
    by_source = before.pattern() in ("source", "all") and after.pattern() in ("source", "all")
    return _units(before, key, by_source), _units(after, key, by_source)


def _units(run: Run, key: str, by_source: bool) -> frozenset[object]:
    names = {gpu.number: getattr(gpu, key) for gpu in run.gpus}
    if by_source:
        return frozenset(names[source] for source, _ in run.bad_pairs())
    return frozenset((names[source], names[destination]) for source, destination in run.bad_pairs())
