"""Parsers of ``nvidia-smi topo -m``, ``topo -p2p`` and ``nvlink``. Pure; an unknown code is None."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Matrix = dict[str, dict[str, str | None]]

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+|mlx\d+_\d+")
_LINK = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")
# OK, chipset, GPU or topology not supported, disabled by a registry key, not supported, unknown.
_PEER_STATUS = re.compile(r"X|OK|CNS|GNS|TNS|DR|NS|U")
_GPU_HEADER = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-f-]{36})\)")
_LINK_STATUS = re.compile(r"\s*Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<?(inactive)>?)", re.IGNORECASE)


@dataclass(frozen=True)
class NvLink:
    """One link of a GPU: its rate in GB/s, or None where it is inactive."""

    number: int
    gigabytes_per_second: float | None


def parse_topology(text: str) -> Matrix:
    """Which way leads from each device to each other (``topo -m``): ``NV12``, ``PIX``, ``NODE`` …"""
    return _matrix(text, lambda cell: cell if _LINK.fullmatch(cell) else None)


def parse_peer_status(text: str) -> Matrix:
    """What the driver says of each pair's access (``topo -p2p r`` and ``w``): ``OK``, ``CNS`` …"""
    return _matrix(text, lambda cell: cell if _PEER_STATUS.fullmatch(cell) else None)


def _matrix(text: str, known: Callable[[str], str | None]) -> Matrix:
    columns: list[str] = []
    matrix: Matrix = {}
    for line in _ANSI.sub("", text).splitlines():
        cells = _cells(line)
        if not columns:
            columns = [cell for cell in cells if _DEVICE.fullmatch(cell)]
        elif cells and _DEVICE.fullmatch(cells[0]):
            row = (cells[1:] + [""] * len(columns))[: len(columns)]
            matrix[cells[0]] = {
                column: known(cell) for column, cell in zip(columns, row, strict=True) if column != cells[0]
            }
    return matrix


def _cells(line: str) -> list[str]:
    """Tabs keep empty cells apart; where a paste turned them into spaces, runs of spaces do."""
    if "\t" in line.strip():
        cells = [cell.strip() for cell in line.split("\t")]
        return cells[1:] if cells and not cells[0] else cells
    return line.split()


def parse_nvlink_status(text: str) -> dict[str, list[NvLink]]:
    """Links by the GPU's UUID (``nvlink --status``)."""
    links: dict[str, list[NvLink]] = {}
    current: list[NvLink] | None = None
    for line in _ANSI.sub("", text).splitlines():
        header = _GPU_HEADER.match(line.strip())
        if header:
            current = links.setdefault(header[3], [])
            continue
        status = _LINK_STATUS.match(line)
        if status and current is not None:
            current.append(NvLink(int(status[1]), float(status[2]) if status[2] else None))
    return links
