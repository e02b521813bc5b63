"""Which transport NCCL really chose between GPUs, out of the log that it writes with NCCL_DEBUG=INFO. Pure.

Forms of the line that names a transport (the log's text as NCCL 2.4 to 2.30 write it; what stands before
``NCCL INFO`` differs with the launcher and isn't read)::

    Ring 00 : 0[0] -> 1[1] via P2P/IPC                            2.4 to 2.7
    Channel 00 : 0[3d000] -> 1[63000] via direct shared memory    2.8 to 2.10
    Channel 00 : 0[0] -> 1[1] via SHM/direct/direct               2.11 and newer
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read                2.12 and newer
    Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0           all

In brackets stands the GPU: its PCI address without separators, or (since 2.18) its number. The module uses
the standard library only, because an Ansible module carries it to the target (a link in ``module_utils``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LINE = re.compile(
    r"(?:Channel|Ring|Tree) \d+(?:/\d+)? ?: ?(?P<source>\d+)(?:\[[0-9a-f]+\])? -> "
    r"(?P<destination>\d+)(?:\[[0-9a-f]+\])?(?: \[(?:send|receive)\])? via (?P<way>\S.*)"
)
_RANKS = re.compile(r"NCCL INFO .*\bn[rR]anks (?P<ranks>\d+)\b")
_VERSION = re.compile(r"NCCL version (?P<version>\d+\.\d+(?:\.\d+)?)")
_MULTICAST = re.compile(r"Connected NVLS tree|NVLS comm 0x[0-9a-f]+ headRank")
_OLD_SHARED_MEMORY = "direct shared memory"
# What moves words from GPU to GPU without the host's memory, by its name in the log.
_PEER_KINDS = ("P2P", "NVLS")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Transports:
    """What a log tells.

    Transports by ordered pair of ranks (``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/IB/0``), the size of the
    largest communicator, NCCL's version, and whether NVLink multicast was set up.
    """

    pairs: Mapping[Pair, frozenset[str]]
    ranks: int | None = None
    version: str | None = None
    multicast: bool = False

    def kinds(self) -> frozenset[str]:
        """The kinds in use: ``P2P``, ``SHM``, ``NET`` …"""
        return frozenset(kind_of(way) for ways in self.pairs.values() for way in ways)


def kind_of(way: str) -> str:
    """The kind of a transport: what stands before the first stroke."""
    return way.partition("/")[0]


def parse_nccl_log(lines: Iterable[str]) -> Transports:
    """The transports in a log. A line of another form says nothing; nothing is guessed."""
    pairs: dict[Pair, set[str]] = {}
    sizes: list[int] = []
    version, multicast = None, False
    for raw in lines:
        line = _ANSI.sub("", raw.rstrip())
        if match := _LINE.search(line):
            pair = int(match["source"]), int(match["destination"])
            pairs.setdefault(pair, set()).add(_way(match["way"]))
        elif match := _RANKS.search(line):
            sizes.append(int(match["ranks"]))
        elif match := _VERSION.search(line):
            version = version or match["version"]
        multicast = multicast or _MULTICAST.search(line) is not None
    known = {pair: frozenset(ways) for pair, ways in sorted(pairs.items())}
    return Transports(known, max(sizes, default=None), version, multicast)


def _way(text: str) -> str:
    """The transport as one word: nothing after it belongs to it but the words of two of its names."""
    if text.startswith(_OLD_SHARED_MEMORY):
        return "SHM/direct"
    if text.startswith("P2P/direct pointer"):
        return text.replace("direct pointer", "direct", 1).split()[0]
    return text.split()[0]


def peer_lines(lines: Iterable[str]) -> list[str]:
    """The lines that name a way from GPU to GPU past the host's memory, as they stand in the log."""
    found = []
    for raw in lines:
        line = _ANSI.sub("", raw.rstrip())
        match = _LINE.search(line)
        peer = match is not None and kind_of(_way(match["way"])) in _PEER_KINDS
        if peer or _MULTICAST.search(line):
            found.append(line)
    return found


def objections(seen: Transports, ranks: int, peer_allowed: bool) -> list[str]:
    """Sentences on how what NCCL does differs from a plan for ``ranks`` GPUs; none where it is as planned.

    A log that doesn't tell is an objection as well: nothing is proven by silence.
    """
    if ranks < 2:
        return []
    if not seen.pairs:
        return [
            "NCCL's log names no transport: it does so only with NCCL_DEBUG=INFO, and only when the engine's "
            "processes have connected."
        ]
    silent = sorted(set(range(ranks)) - {rank for pair in seen.pairs for rank in pair})
    found = [f"NCCL's log names no transport for rank {rank} of {ranks}." for rank in silent]
    if peer_allowed:
        return found
    for (source, destination), ways in seen.pairs.items():
        peer = sorted(way for way in ways if kind_of(way) in _PEER_KINDS)
        if peer:
            found.append(
                f"NCCL moves data from rank {source} to rank {destination} via {', '.join(peer)}, which the "
                "plan forbids (NCCL_P2P_DISABLE=1)."
            )
    if seen.multicast:
        found.append("NCCL has set NVLink multicast (NVLS) up, which the plan forbids (NCCL_NVLS_ENABLE=0).")
    return found
