"""What the history says about the cause, why, and the ladder of fixes with the decisive experiment first.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_diag.report.history import Boot, Movement, Run, movements

_TRANSLATING = ("DMA", "DMA-FQ")


@dataclass(frozen=True)
class Host:
    """What counts of the host for a diagnosis; None where it isn't known."""

    iommu_translates: bool | None = None
    passthrough_asked: bool | None = None
    nvlink_down: bool | None = None
    acs_redirects: bool | None = None
    iommu_faults: int = 0
    memory_xids: int = 0


@dataclass(frozen=True)
class Step:
    """A step of the ladder: what to do, and what it shows or mends."""

    text: str
    why: str
    decisive: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """``cause``: none, platform, board, fabric, undecided, control or hang."""

    cause: str
    headline: str
    why: tuple[str, ...]
    ladder: tuple[Step, ...]


_HEADLINES = {
    "none": "No fault between GPUs has been seen.",
    "untested": "There is no path between GPUs that could be checked on this machine.",
    "mended": "The fault that was seen before is gone in the present boot.",
    "platform": (
        "The fault is in the platform's state (IOMMU mappings between the GPUs, driver, kernel, ACS), "
        "not in the silicon."
    ),
    "board": "The fault follows the board from slot to slot: the GPU board is faulty.",
    "fabric": "The fault stays with the slot whatever board is in it: root port, riser or baseboard.",
    "undecided": "There is a fault between GPUs, and the history doesn't tell yet where it comes from.",
    "control": "Not even the path through the host's memory is right: GPU to GPU can't be judged.",
    "hang": "Copies between GPUs hang: the driver or the platform stops them.",
}


def host_of(document: Mapping[str, object] | None, identity: Mapping[str, object]) -> Host:
    """The host's part out of the newest host document (None where there is none) and an identity."""
    details = document.get("details") if document is not None else None
    known: Mapping[str, object] = details if isinstance(details, Mapping) else {}
    types = identity.get("iommu_group_types")
    line = identity.get("kernel_command_line")
    redirect = identity.get("acs_redirect")
    events = known.get("kernel_events")
    found = [event for event in events if isinstance(event, Mapping)] if isinstance(events, list) else []
    return Host(
        iommu_translates=any(types.get(name) for name in _TRANSLATING)
        if isinstance(types, Mapping) and types
        else None,
        passthrough_asked="iommu=pt" in line.split() if isinstance(line, str) else None,
        nvlink_down=_nvlink_down(known.get("nvlink")),
        acs_redirects=_acs_redirects(redirect),
        iommu_faults=sum(event.get("kind") in ("dmar", "amd_vi") for event in found),
        memory_xids=sum(event.get("kind") == "xid" and event.get("code") in (31, 32) for event in found),
    )


def _acs_redirects(redirect: object) -> bool | None:
    """Whether a port above a GPU redirects; None where that isn't known of all ports."""
    ports = list(redirect.values()) if isinstance(redirect, Mapping) else []
    if any(ports):
        return True
    return False if ports and None not in ports else None


def _nvlink_down(links: object) -> bool | None:
    """Whether there are links and none of them is active."""
    if not isinstance(links, Mapping) or not links:
        return None
    rates = [
        link.get("gigabytes_per_second")
        for of_gpu in links.values()
        if isinstance(of_gpu, list)
        for link in of_gpu
        if isinstance(link, Mapping)
    ]
    return all(rate is None for rate in rates) if rates else None


def diagnose(boots: Sequence[Boot], gpus_clean: bool | None, host: Host) -> Diagnosis:
    """The diagnosis; ``gpus_clean`` is what the integrity check says of all GPUs (None: it was not run)."""
    if not boots:
        return Diagnosis("none", "The paths between GPUs have not been checked yet.", (), ())
    last = boots[-1].last
    moves = movements(boots)
    cause = _cause(boots, moves, gpus_clean)
    headline = _HEADLINES[cause]
    why = (*_why(last, moves, gpus_clean), *_host_reasons(host))
    if cause in ("none", "mended", "untested"):
        return Diagnosis("none", headline, why, ())
    return Diagnosis(cause, headline, why, tuple(_ladder(cause, host)))


def _cause(boots: Sequence[Boot], moves: Sequence[Movement], gpus_clean: bool | None) -> str:
    last = boots[-1].last
    kinds = {move.kind for move in moves}
    if last.verdict == "inconclusive" and (last.class_ or "").startswith("control"):
        return "control"
    if set(last.pairs.values()) == {"not_applicable"}:
        return "untested"
    if not last.bad_pairs():
        ever = any(run.bad_pairs() for boot in boots for run in boot.runs)
        return "mended" if ever else "none"
    if "moved" in kinds and gpus_clean is not False:
        return "platform"
    if "follows_board" in kinds:
        return "board"
    if "follows_slot" in kinds:
        return "fabric"
    return "hang" if last.verdict == "hang" else "undecided"


def _why(last: Run, moves: Sequence[Movement], gpus_clean: bool | None) -> list[str]:
    reasons = []
    pattern = {
        "source": "Sorted by source GPU, each is either corrupt to all others or clean to all: copies "
        "are issued by the source's copy engine.",
        "destination": "Sorted by destination GPU, each is either corrupt from all others or clean from all.",
        "all": "All ordered pairs are bad.",
        "pair": "Neither the source nor the destination alone sorts the bad pairs.",
    }.get(last.pattern())
    if pattern:
        reasons.append(pattern)
    for move in moves:
        when = f"Between {move.before.at[:10]} and {move.after.at[:10]}"
        sentence = {
            "moved": f"{when} the machine was booted and the bad set moved, with the same boards in the same "
            "slots: a fault of a board or a slot would have stayed.",
            "stayed": f"{when} the machine was booted and the bad set stayed the same.",
            "follows_board": f"{when} boards changed slots, and the fault went with the board.",
            "follows_slot": f"{when} boards changed slots, and the fault stayed with the slot.",
            "gone": f"{when} the machine was booted and the fault is gone.",
            "came": f"{when} the machine was booted and the fault came.",
        }[move.kind]
        if move.kind != "stayed" or move.before.bad_pairs():
            reasons.append(sentence)
    if gpus_clean is True:
        reasons.append("Each GPU by itself copies and computes correctly.")
    elif gpus_clean is False:
        reasons.append("Not every GPU is clean by itself: that must be mended first.")
    else:
        reasons.append("Whether each GPU is clean by itself isn't known: run the integrity check.")
    return reasons


def _host_reasons(host: Host) -> list[str]:
    reasons = []
    if host.iommu_translates and host.passthrough_asked is False:
        reasons.append(
            "The IOMMU translates (no `iommu=pt` on the kernel command line): every write from GPU to GPU "
            "crosses mappings that each boot builds anew."
        )
    if host.iommu_faults:
        reasons.append(f"IOMMU faults of GPUs in the kernel log: {host.iommu_faults}.")
    if host.memory_xids:
        reasons.append(f"Xid events of the memory or DMA kinds in the kernel log: {host.memory_xids}.")
    if host.nvlink_down:
        reasons.append("All NVLinks are inactive, so that PCI Express is the only path.")
    return reasons


def _ladder(cause: str, host: Host) -> list[Step]:
    steps = []
    swap = Step(
        "Swap two boards between their slots and run the check again.",
        "Follows the serial number: the board. Follows the slot: the fabric.",
        decisive=cause in ("board", "fabric"),
    )
    if cause == "control":
        return [
            Step(
                "Stop the engines, test the host's memory and each GPU by itself.",
                "Nothing that these GPUs compute can be trusted while copies through the host are wrong.",
                decisive=True,
            )
        ]
    if cause in ("board", "fabric"):
        steps.append(swap)
    if cause != "board" and host.passthrough_asked is not True:
        steps.append(
            Step(
                "Boot once with `intel_iommu=on iommu=pt` (AMD: `iommu=pt`) and run the check again.",
                "All pairs clean proves that the IOMMU's translation is the cause.",
                decisive=cause not in ("board", "fabric", "hang"),
            )
        )
    if host.nvlink_down is not False:
        steps.append(
            Step(
                "Bring NVLink up: firmware settings, seating, number of boards on the baseboard.",
                "With NVLink the PCI Express path between the GPUs no longer matters.",
            )
        )
    if host.acs_redirects is not False:
        steps.append(
            Step(
                "Look at ACS on the root ports of the GPUs, at the firmware, and at a driver that "
                "fits the kernel. In a virtual machine these are the host's settings: leave ACS on.",
                "Redirected requests go through the root complex, where the translation is.",
            )
        )
    if swap not in steps:
        steps.append(Step(swap.text, f"Only if the fault survives the steps before. {swap.why}"))
    return steps
