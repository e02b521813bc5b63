"""How much memory is free on each GPU, and which GPUs have too little of it for a probe. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass

from .gpu_diag_parsers import normal_pci_address, parse_memory

# The arena of a probe, and what torch and the comparison of a chunk need beside it.
NEEDED_BYTES = 2 << 30
_GIBIBYTE = 2**30


@dataclass(frozen=True)
class FreeMemory:
    """A GPU and its free memory; None where the driver doesn't say."""

    uuid: str
    pci_address: str | None
    free_bytes: int | None

    @property
    def is_short(self) -> bool:
        """Whether a probe would find too little. Where the driver doesn't say, the probe itself will."""
        return self.free_bytes is not None and self.free_bytes < NEEDED_BYTES

    def sentence(self) -> str:
        """How much is free, and how much a probe needs."""
        free = "an unknown amount" if self.free_bytes is None else f"{self.free_bytes / _GIBIBYTE:.1f} GiB"
        where = self.pci_address or self.uuid
        return (
            f"The GPU at {where} has {free} of free memory, a probe needs {NEEDED_BYTES / _GIBIBYTE:.1f} GiB"
        )


def parse_free_memory(xml: str) -> list[FreeMemory] | None:
    """Free memory by GPU out of ``nvidia-smi -q -x`` (schemas v11 to v13); None where it isn't such XML."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None
    return [_of_gpu(gpu) for gpu in root.findall("gpu")]


def _of_gpu(gpu: ElementTree.Element) -> FreeMemory:
    free = gpu.findtext("fb_memory_usage/free")
    return FreeMemory(
        uuid=(gpu.findtext("uuid") or "").strip(),
        pci_address=normal_pci_address(gpu.findtext("pci/pci_bus_id") or gpu.get("id")),
        free_bytes=parse_memory(free.strip() if free else None),
    )


def short_ones(gpus: Iterable[FreeMemory]) -> list[FreeMemory]:
    """The GPUs with too little free memory for a probe."""
    return [gpu for gpu in gpus if gpu.is_short]
