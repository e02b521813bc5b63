"""Which path the devices of a set may use between each other: the staged one, unless the peer path is earned.

The staged path goes through the host's memory and is the normal state. The peer path is earned by evidence
for every ordered pair of the set, in the present boot and in earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, permutations

from .evidence import Evidence, Probe
from .model import Device, GpuPath

EARLIER_BOOTS = 1
EARLIER_BOOTS_AFTER_MOVING_FAULTS = 2


@dataclass(frozen=True)
class Trust:
    """The path of a set of devices, the boot that allowed it, and what is missing for the peer path."""

    path: GpuPath
    boot_id: str | None = None
    missing: tuple[str, ...] = ()


def trust(devices: Sequence[Device], evidence: Evidence, addresses: Sequence[str], *, allowed: bool) -> Trust:
    """What the set may use. `addresses` are the PCI addresses of its GPUs; `allowed`: somebody asks for the
    peer path (gpu_diag_allow_p2p)."""
    uuids = [device.uuid for device in devices]
    if len(devices) < 2 or not allowed:
        return Trust("staged")
    if None in uuids:
        return Trust("staged", missing=("CPU devices have no peer path",))
    missing = _missing([uuid for uuid in uuids if uuid], evidence, addresses)
    newest = evidence.newest("p2p")
    if missing or newest is None:
        return Trust("staged", missing=tuple(missing))
    return Trust("peer", boot_id=newest.boot_id)


def _missing(uuids: Sequence[str], evidence: Evidence, addresses: Sequence[str]) -> list[str]:
    newest, damaged = evidence.newest("p2p"), evidence.hidden_by("p2p")
    if damaged is not None:
        return [f"the newest p2p_check can't be read ({damaged.path})"]
    if newest is None:
        return ["no p2p_check was run yet"]
    found = [f"the newest p2p_check is of another state of the machine: {each.sentence}"
             for each in newest.differences]  # fmt: skip
    found += [f"the p2p_check is suspect: {each}" for each in evidence.suspicions(newest, addresses)]
    if newest.control_arm != "clean":
        found.append("the control arm of the newest p2p_check is not clean")
    verdicts = _verdicts(newest, uuids)
    found += [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict != "clean"]
    if not _clean(newest, uuids):
        return found
    return found + _missing_history(evidence.probes.get("p2p", ()), uuids, newest.boot_id)


def _verdicts(probe: Probe, uuids: Sequence[str]) -> dict[str, str]:
    """The verdict on each ordered pair; what the probe says nothing of is `not probed`."""
    return {
        f"{source} to {destination}": probe.pair_verdict(source, destination) or "not probed"
        for source, destination in permutations(uuids, 2)
    }


def _clean(probe: Probe, uuids: Sequence[str]) -> bool:
    return all(verdict == "clean" for verdict in _verdicts(probe, uuids).values())


def _missing_history(probes: Sequence[Probe], uuids: Sequence[str], present: str | None) -> list[str]:
    """Earlier boots count while the set was clean in them, back to the last one in which it was not."""
    boots = [list(each) for _, each in groupby(probes, key=lambda probe: probe.boot_id)]
    if any(not _clean(probe, uuids) for boot in boots if boot[0].boot_id == present for probe in boot):
        return ["an earlier p2p_check of this very boot was not clean"]
    earlier = [boot for boot in boots if boot[0].boot_id != present]
    clean = 0
    for boot in earlier:
        if not all(_clean(probe, uuids) for probe in boot):
            break
        clean += 1
    needed = EARLIER_BOOTS_AFTER_MOVING_FAULTS if _moved(boots, uuids) else EARLIER_BOOTS
    if clean >= needed:
        return []
    why = ", since its faults have moved before" if needed > EARLIER_BOOTS else ""
    return [f"it has to be clean in {needed} earlier boot(s) in a row{why}; it was in {clean}"]


def _moved(boots: Sequence[Sequence[Probe]], uuids: Sequence[str]) -> bool:
    """Whether a pair was corrupt in one boot and clean in another."""
    seen: dict[str, set[str]] = {}
    for boot in boots:
        for probe in boot:
            for name, verdict in _verdicts(probe, uuids).items():
                seen.setdefault(name, set()).add(verdict)
    return any({"clean", "corrupt"} <= verdicts for verdicts in seen.values())
