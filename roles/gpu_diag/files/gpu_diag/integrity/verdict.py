"""From what the checks of one device found, and its error counters before and after, to verdicts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Json = dict[str, object]
# Counters that may never grow while a device is used correctly.
_DAMNING = ("ecc_uncorrected", "remapped_rows_uncorrectable", "retired_pages_double_bit")
_WORRYING = ("ecc_corrected", "remapped_rows_correctable", "retired_pages_single_bit")
_STATES = ("remapped_rows_pending", "remapped_rows_failure", "retired_pages_pending")


@dataclass(frozen=True)
class Finding:
    """Something that was wrong: its class, and a sentence."""

    class_: str
    sentence: str


@dataclass(frozen=True)
class DeviceResult:
    """What one device showed. ``ended`` is ``completed``, ``hang``, ``lost`` or ``died``."""

    name: str
    uuid: str | None
    findings: tuple[Finding, ...]
    ended: str = "completed"
    sentence: str | None = None
    counters_before: Mapping[str, object] = field(default_factory=dict)
    counters_after: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The verdict on all devices; ``devices`` are what stands in the document."""

    verdict: str
    class_: str | None
    devices: tuple[Json, ...]
    evidence: tuple[str, ...]


def counter_findings(before: Mapping[str, object], after: Mapping[str, object]) -> list[Finding]:
    """What the error counters say about the time of the test; unknown counters say nothing."""
    findings = []
    for name in (*_DAMNING, *_WORRYING):
        old, new = before.get(name), after.get(name)
        if isinstance(old, int) and isinstance(new, int) and new > old:
            class_ = "ecc_uncorrected" if name in _DAMNING else "ecc_corrected"
            findings.append(Finding(class_, f"{name} grew from {old} to {new} during the test"))
    findings += [
        Finding("row_remapping", f"{name} is set: the GPU must be reset or replaced")
        for name in _STATES
        if after.get(name) is True
    ]
    return findings


def judge(results: Sequence[DeviceResult]) -> Judgement:
    """The verdict on all devices: the worst of theirs."""
    documents, sentences, verdicts = [], [], []
    for number, result in enumerate(results):
        findings = [*result.findings, *counter_findings(result.counters_before, result.counters_after)]
        verdict, class_ = _verdict(result.ended, findings)
        verdicts.append((verdict, class_))
        documents.append(
            {
                "number": number,
                "name": result.name,
                "uuid": result.uuid,
                "verdict": verdict,
                "class": class_,
                "counters_before": dict(result.counters_before),
                "counters_after": dict(result.counters_after),
            }
        )
        sentences += _sentences(number, result, verdict, findings)
    worst = min(verdicts, key=lambda one: _FROM_WORST.index(one[0]), default=("not_applicable", "no_device"))
    return Judgement(worst[0], worst[1], tuple(documents), tuple(sentences))


_FROM_WORST = ("corrupt", "hang", "inconclusive", "clean", "not_applicable")


def _verdict(ended: str, findings: Sequence[Finding]) -> tuple[str, str | None]:
    # Corrected errors are what ECC is for: they are told, and condemn nothing.
    damning = [finding for finding in findings if finding.class_ != "ecc_corrected"]
    if damning:
        return "corrupt", damning[0].class_
    if ended == "hang":
        return "hang", "hang"
    if ended != "completed":
        return "inconclusive", {"lost": "device_lost"}.get(ended, "probe_died")
    return "clean", None


def _sentences(number: int, result: DeviceResult, verdict: str, findings: Sequence[Finding]) -> list[str]:
    told = [f"GPU {number} ({result.name}): {finding.sentence}." for finding in findings]
    if result.sentence:
        told.append(f"GPU {number} ({result.name}): {result.sentence}")
    return told or [f"GPU {number} ({result.name}): {verdict}, copies and products are right."]
