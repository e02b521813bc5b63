"""Which events make evidence about GPUs suspect, until it is probed again. Pure rules, and their marks.

A mark revokes what was proven before it, in the same boot (another boot makes evidence stale anyway).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_diag.hostfacts.kernel_log import Event
from gpu_diag.hostfacts.xid import meaning_of

Json = dict[str, object]

SCHEMA_VERSION = 1
_XID_KINDS = ("memory", "dma", "bus")


@dataclass(frozen=True)
class Suspicion:
    """Why evidence about a GPU (by PCI address) can't be trusted any more. ``key`` tells one event from
    another."""

    rule: str
    pci_address: str
    sentence: str
    key: str

    def mark(self, boot_id: str | None, at: str) -> Json:
        """The mark that revokes evidence from before ``at`` (ISO 8601, UTC)."""
        return {
            "schema_version": SCHEMA_VERSION,
            "boot_id": boot_id,
            "at": at,
            "rule": self.rule,
            "pci_address": self.pci_address,
            "sentence": self.sentence,
        }


def from_event(event: Event, gpus: Sequence[str]) -> Suspicion | None:
    """What an event of the kernel log makes suspect; ``gpus`` are the PCI addresses of the GPUs."""
    address = event.pci_address
    if address is None or address not in gpus:
        return None
    rule = _rule_of(event)
    if rule is None:
        return None
    moment = event.sequence if event.sequence is not None else event.seconds or event.date
    return Suspicion(rule, address, f"{event.meaning} Kernel log: {event.text}", f"{rule}-{address}-{moment}")


def _rule_of(event: Event) -> str | None:
    if event.kind == "xid" and event.code is not None:
        return f"xid_{event.code}" if meaning_of(event.code).kind in _XID_KINDS else None
    if event.kind in ("dmar", "amd_vi"):
        return "iommu_fault"
    if event.kind == "off_the_bus":
        return "off_the_bus"
    # The driver also says so once at boot; that mark is older than any evidence of the boot, and revokes
    # none.
    return "probed_again" if event.kind == "probed" else None


def from_inventories(before: Iterable[str], now: Iterable[str]) -> list[Suspicion]:
    """What a change of the GPUs' inventory makes suspect: addresses that vanished, or came back."""
    old, new = set(before), set(now)
    return [
        *(
            Suspicion(
                "gpu_vanished", address, f"The GPU at {address} is no longer there.", f"vanished-{address}"
            )
            for address in sorted(old - new)
        ),
        *(
            Suspicion("gpu_appeared", address, f"A GPU appeared at {address}.", f"appeared-{address}")
            for address in sorted(new - old)
        ),
    ]


def from_engine(pci_addresses: Iterable[str], reason: str, moment: str) -> list[Suspicion]:
    """What an engine saw (``nan``: values that are not numbers; ``canary``: a known answer came out
    otherwise)."""
    sentences = {
        "nan": "An engine on this GPU counted values that are not numbers (NaN).",
        "canary": "An engine on this GPU gave another answer to its canary than before.",
    }
    return [
        Suspicion(f"engine_{reason}", address, sentences[reason], f"{reason}-{address}-{moment}")
        for address in pci_addresses
    ]
