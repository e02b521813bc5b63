"""What the probes say about this box now: which evidence counts, and why the rest doesn't.

Evidence about devices counts only while the machine's identity is the one it was made in; marks of the
watcher revoke it, and a file that can't be read hides what it said. Nothing here decides what a verdict
allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .calibration import Calibration
from .model import WeightEvidence

DEVICE_PROBES = ("integrity", "control", "p2p")
_CONTROL_FAILED = ("control_failed", "control_hang")

_MACHINE = {
    "kernel": "the kernel",
    "kernel_command_line": "the kernel command line",
    "driver": "the GPU driver",
    "bios_version": "the firmware (BIOS)",
    "iommu_group_types": "the types of the IOMMU groups",
    "acs_redirect": "the ACS redirect bits of the ports above the GPUs",
}
_GPU_KEYS = ("uuid", "serial", "pci_address", "vbios")
_DAMAGED = re.compile(
    r"the evidence (?P<path>/.*/(?P<kind>weights|integrity|control|p2p|suspect)/(?P<name>[^/]+\.json)) "
    r"(?P<why>.+)"
)


@dataclass(frozen=True)
class Difference:
    """What makes recorded evidence another machine's: `kind` is boot, board or machine."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Mark:
    """A mark of the watcher: something happened to the GPU at this PCI address at that time."""

    pci_address: str
    at: str
    boot_id: str | None
    sentence: str


@dataclass(frozen=True)
class Probe:
    """One document of a probe of devices. `boot_id` is the boot it was made in."""

    kind: str
    verdict: str
    class_: str | None
    finished_at: str
    boot_id: str | None
    details: Mapping[str, Any]
    differences: tuple[Difference, ...] = ()
    sentences: tuple[str, ...] = ()

    @property
    def control_arm(self) -> str:
        """What it says of the path through the host's memory: clean, failed or unknown."""
        if self.class_ in _CONTROL_FAILED or (self.kind == "control" and self.verdict in ("corrupt", "hang")):
            return "failed"
        if self.kind == "control":
            return "clean" if self.verdict == "clean" else "unknown"
        words = self.details.get("control_words")
        sent = isinstance(words, int) and words > 0
        return (
            "clean" if sent and self.verdict in ("clean", "corrupt", "hang", "not_applicable") else "unknown"
        )

    def devices(self) -> list[Mapping[str, Any]]:
        """The devices it speaks of, in its own numbering."""
        found = self.details.get("devices")
        return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []

    def on_cpu(self) -> bool:
        """Whether shares of the processor were probed, and not GPUs."""
        return "cpu" in (self.details.get("kind"), self.details.get("runtime"))

    def pair_verdict(self, source: str, destination: str) -> str | None:
        """The verdict on an ordered pair of GPUs (by UUID); None where it says nothing of them."""
        numbers = {str(device.get("uuid")): number for number, device in enumerate(self.devices())}
        wanted = (numbers.get(source), numbers.get(destination))
        pairs = self.details.get("pairs")
        for pair in pairs if isinstance(pairs, list) else []:
            if isinstance(pair, Mapping) and (pair.get("source"), pair.get("destination")) == wanted:
                return str(pair.get("verdict"))
        return None


@dataclass(frozen=True)
class Damaged:
    """A file of evidence that can't be read; `moment` is when its name says that it was written."""

    kind: str
    path: str
    why: str
    moment: str


@dataclass(frozen=True)
class Evidence:
    """All evidence of a box. Probes by kind, the newest first; weights by model folder; calibration by
    service."""

    weights: Mapping[str, WeightEvidence] = field(default_factory=dict)
    probes: Mapping[str, tuple[Probe, ...]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    calibration_problems: tuple[tuple[str, str], ...] = ()

    def newest(self, kind: str) -> Probe | None:
        """The newest readable document of a kind."""
        found = self.probes.get(kind, ())
        return found[0] if found else None

    def hidden_by(self, kind: str) -> Damaged | None:
        """A damaged file that is newer than all that can be read of a kind: it may have said the contrary."""
        newest = self.newest(kind)
        since = newest.finished_at if newest is not None else ""
        damaged = [each for each in self.damaged if each.kind == kind and each.moment >= since]
        return max(damaged, key=lambda each: each.moment, default=None)

    def suspicions(self, probe: Probe, addresses: Iterable[str]) -> list[str]:
        """Sentences on what happened to GPUs (by PCI address) in the probe's boot and after it."""
        wanted = {address.lower() for address in addresses}
        return [
            mark.sentence
            for mark in self.marks
            if mark.pci_address.lower() in wanted
            and mark.boot_id == probe.boot_id
            and mark.at > probe.finished_at
        ]


def differences(recorded: Mapping[str, Any], present: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Why evidence of a recorded identity doesn't speak of the present machine; none when it does.

    What one side could not read counts as different: what isn't known isn't proven the same.
    """
    found: list[Difference] = []
    if recorded.get("boot_id") != present.get("boot_id"):
        found.append(Difference("boot", "the machine was booted again since"))
    for key, name in _MACHINE.items():
        if recorded.get(key) != present.get(key):
            found.append(Difference("machine", f"{name} is another now"))
    return (*found, *_boards(_gpus(recorded), _gpus(present)))


def _gpus(identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    gpus = identity.get("gpus")
    found = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    return {str(gpu.get("pci_address")): {key: gpu.get(key) for key in _GPU_KEYS} for gpu in found}


def _boards(
    recorded: Mapping[str, dict[str, Any]], present: Mapping[str, dict[str, Any]]
) -> list[Difference]:
    found: list[Difference] = []
    for slot in sorted({*recorded, *present}):
        old, new = recorded.get(slot), present.get(slot)
        if old is None:
            found.append(Difference("board", f"the GPU at {slot} was not there then"))
        elif new is None:
            found.append(Difference("board", f"the GPU at {slot} is gone"))
        elif old["uuid"] != new["uuid"] or old["serial"] != new["serial"]:
            found.append(
                Difference("board", f"another board is at {slot}: {old['uuid']} then, {new['uuid']} now")
            )
        elif old != new:
            found.append(Difference("machine", f"the GPU at {slot} has another VBIOS now"))
    return found


# ------------------------------------------------------------------------------------------- from the box


def probes_from_box(box: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, tuple[Probe, ...]]:
    """The documents about devices by kind, the newest first; what isn't evidence is left out."""
    evidence = box.get("evidence")
    found: dict[str, tuple[Probe, ...]] = {}
    for kind in DEVICE_PROBES:
        documents = evidence.get(kind) if isinstance(evidence, Mapping) else None
        probes = [_probe(kind, each, identity) for each in documents or () if isinstance(each, Mapping)]
        found[kind] = tuple(
            sorted((probe for probe in probes if probe), key=lambda each: each.finished_at, reverse=True)
        )
    return found


def _probe(kind: str, document: Mapping[str, Any], present: Mapping[str, Any]) -> Probe | None:
    verdict, finished_at = document.get("verdict"), document.get("finished_at")
    identity, details = document.get("identity"), document.get("details")
    if not (isinstance(verdict, str) and isinstance(finished_at, str) and isinstance(identity, Mapping)):
        return None
    class_, sentences = document.get("class"), document.get("evidence")
    return Probe(
        kind=kind,
        verdict=verdict,
        class_=class_ if isinstance(class_, str) else None,
        finished_at=finished_at,
        boot_id=_text(identity.get("boot_id")),
        details=details if isinstance(details, Mapping) else {},
        differences=differences(identity, present),
        sentences=tuple(map(str, sentences)) if isinstance(sentences, list) else (),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def marks_from_box(box: Mapping[str, Any]) -> tuple[Mark, ...]:
    """The watcher's marks."""
    marks = box.get("suspicions")
    return tuple(
        Mark(str(mark.get("pci_address")), str(mark.get("at")), _text(mark.get("boot_id")),
             str(mark.get("sentence")))
        for mark in (marks if isinstance(marks, list) else [])
        if isinstance(mark, Mapping)
    )  # fmt: skip


def damaged_from_box(box: Mapping[str, Any]) -> tuple[Damaged, ...]:
    """The files of evidence that the box could not read, and documents without what evidence has."""
    problems = box.get("problems")
    matches = (
        _DAMAGED.fullmatch(str(problem)) for problem in (problems if isinstance(problems, list) else [])
    )
    return tuple(
        Damaged(match["kind"], match["path"], match["why"].split(":")[0], _moment(match["name"]))
        for match in matches
        if match is not None
    )


def _moment(name: str) -> str:
    """When a file of evidence was written, from its name; a name that doesn't say it counts as newest."""
    try:
        moment = datetime.strptime(name[: len("20260803T090030.000000Z")], "%Y%m%dT%H%M%S.%fZ")
    except ValueError:
        return "9999"
    return moment.replace(tzinfo=UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
