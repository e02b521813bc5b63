"""Events in the kernel log that concern GPUs. Pure; a line that isn't understood is no event, never a guess.

Forms of the same line: ``/dev/kmsg`` (``6,339,5140900,-;text``), ``dmesg`` with seconds since boot or with
the date (``-T``), and the journal (``… kernel: text``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpu_diag.hostfacts.xid import meaning_of

_KMSG = re.compile(r"\d+,(?P<sequence>\d+),(?P<micros>\d+),[^;]*;(?P<text>.*)")
_DMESG = re.compile(r"(?:<\d+>)?\[\s*(?P<seconds>\d+\.\d+)\] ?(?P<text>.*)")
_DMESG_DATE = re.compile(
    r"\[(?P<date>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?(?P<text>.*)"
)
_JOURNAL = re.compile(r".*? kernel: (?P<text>.*)")
_ADDRESS = (
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?"
)
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}\): (?P<code>\d+)(?P<rest>.*)", re.IGNORECASE)
_OFF_THE_BUS = re.compile(
    rf"NVRM: GPU (?:at )?(?:PCI:)?{_ADDRESS}:? GPU has fallen off the bus", re.IGNORECASE
)
_DMAR = re.compile(rf"DMAR: \[(?P<what>[^\]]*)\] Request device \[{_ADDRESS}\](?P<rest>.*)", re.IGNORECASE)
_AMD_VI = re.compile(rf"(?:nvidia )?{_ADDRESS}: AMD-Vi: Event logged \[(?P<rest>[^\]]*)\]?", re.IGNORECASE)
_AMD_VI_DEVICE = re.compile(
    rf"AMD-Vi: Event logged \[(?P<what>\w+) device={_ADDRESS}(?P<rest>.*)", re.IGNORECASE
)
_AER = re.compile(rf"(?P<driver>\w+) {_ADDRESS}: (?:AER: |PCIe Bus Error: )(?P<rest>.*)", re.IGNORECASE)
_PROBED = re.compile(rf"nvidia {_ADDRESS}: Using (?P<bits>\d+)-bit DMA addresses", re.IGNORECASE)
_SUPPRESSED = re.compile(r"dmar_fault: (?P<count>\d+) callbacks suppressed")
_LONGEST_TEXT = 300


@dataclass(frozen=True)
class Event:
    """One event. ``kind``: xid, off_the_bus, dmar, amd_vi, aer, probed, suppressed.

    ``seconds`` are since boot, ``date`` is as printed; both None where the line didn't say. ``severity`` is
    info, warning, error or fatal; ``meaning`` a sentence in our words.
    """

    kind: str
    text: str
    severity: str
    meaning: str
    pci_address: str | None = None
    code: int | None = None
    seconds: float | None = None
    date: str | None = None
    sequence: int | None = None


def parse_kernel_log(lines: Iterable[str]) -> list[Event]:
    """The events in a kernel log, in its order."""
    return [event for line in lines for event in _events(line)]


def _events(line: str) -> Iterator[Event]:
    text, seconds, date, sequence = _strip(line.rstrip("\n"))
    event = _event(text)
    if event is not None:
        yield replace(event, text=text[:_LONGEST_TEXT], seconds=seconds, date=date, sequence=sequence)


def _strip(line: str) -> tuple[str, float | None, str | None, int | None]:
    if match := _KMSG.fullmatch(line):
        return match["text"], int(match["micros"]) / 1e6, None, int(match["sequence"])
    if match := _DMESG.fullmatch(line):
        return match["text"], float(match["seconds"]), None, None
    if match := _DMESG_DATE.fullmatch(line):
        return match["text"], None, match["date"], None
    if match := _JOURNAL.fullmatch(line):
        return match["text"], None, None, None
    return line, None, None, None


def _event(text: str) -> Event | None:
    if match := _XID.search(text):
        meaning = meaning_of(int(match["code"]))
        return Event("xid", "", meaning.severity, meaning.sentence, _address(match), int(match["code"]))
    if match := _OFF_THE_BUS.search(text):
        sentence = "The GPU no longer answers on the PCI bus."
        return Event("off_the_bus", "", "fatal", sentence, _address(match))
    if match := _DMAR.search(text):
        sentence = f"The IOMMU (VT-d) refused a {match['what'].split(' NO_PASID')[0]} of this device."
        return Event("dmar", "", "error", sentence, _address(match))
    if match := _AMD_VI_DEVICE.search(text) or _AMD_VI.search(text):
        return Event(
            "amd_vi", "", "error", "The IOMMU (AMD-Vi) refused an access of this device.", _address(match)
        )
    if match := _AER.search(text):
        return _aer(match)
    if match := _PROBED.search(text):
        return Event(
            "probed", "", "info", "The driver set this GPU up (again, if after boot).", _address(match)
        )
    if match := _SUPPRESSED.search(text):
        return Event("suppressed", "", "info", f"{match['count']} more IOMMU faults were not printed.")
    return None


def _aer(match: re.Match[str]) -> Event:
    rest = match["rest"].lower()
    if "uncorrect" in rest:
        severity = (
            "fatal" if "fatal" in rest and "non-fatal" not in rest and "nonfatal" not in rest else "error"
        )
    else:
        severity = "warning"
    return Event("aer", "", severity, "The PCI Express link reported an error.", _address(match))


def _address(match: re.Match[str]) -> str:
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus']}:{match['device']}.{match['function'] or '0'}".lower()
