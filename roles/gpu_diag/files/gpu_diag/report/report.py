"""The report of a box: verdict first, then the matrix by source, what changed, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_diag.hostfacts.gpu_diag_evidence_files import revoked_by
from gpu_diag.identity import differences
from gpu_diag.report.blocks import Block, Heading, Items, Paragraph, Table
from gpu_diag.report.diagnosis import Diagnosis, diagnose, host_of
from gpu_diag.report.history import Boot, Json, Run, boots_of, changes, runs_of

Documents = Mapping[str, Sequence[Json]]
_SHOWN_BOOTS = 6


def gpus_are_clean(documents: Sequence[Json]) -> bool | None:
    """What the newest integrity document says; None where there is none that came to an end."""
    for document in documents:
        if document.get("verdict") in ("clean", "corrupt", "hang"):
            return document["verdict"] == "clean"
    return None


def diagnosis_of(documents: Documents, present: Json) -> tuple[Diagnosis, list[Boot]]:
    """The diagnosis of a box from its evidence (each kind the newest first).

    What counts of the machine is how it was at the newest check of the paths, not how it is now.
    """
    checked = documents.get("p2p", ())
    boots = boots_of(runs_of(checked))
    then = checked[0].get("identity") if checked else None
    identity = then if isinstance(then, dict) else present
    host_documents = documents.get("host", ())
    host = host_of(host_documents[0] if host_documents else None, identity)
    return diagnose(boots, gpus_are_clean(documents.get("integrity", ())), host), boots


def make_report(
    documents: Documents, marks: Sequence[Json], identity: Json, box: str, at: str
) -> list[Block]:
    """The report's blocks. ``identity`` is the present one, ``at`` when the report is made."""
    diagnosis, boots = diagnosis_of(documents, identity)
    blocks: list[Block] = [
        Heading(1, f"GPUs of {box}"),
        Paragraph(f"Made at {at}."),
        Heading(2, "Verdict"),
        Paragraph(diagnosis.headline),
        Table(["check", "verdict", "made at", "holds now"], _status_rows(documents, marks, identity)),
    ]
    if boots:
        blocks += [Heading(2, "Matrix by source"), *_matrices(boots)]
        blocks += [Heading(2, "What changed"), *_changes(boots)]
    if diagnosis.why:
        blocks += [Heading(2, "Why"), Items(diagnosis.why)]
    if diagnosis.ladder:
        steps = [
            f"{step.text} {step.why}" + (" (The decisive experiment.)" if step.decisive else "")
            for step in diagnosis.ladder
        ]
        blocks += [Heading(2, "What to do, in this order"), Items(steps, numbered=True)]
        blocks.append(
            Paragraph("Until then the staged path: `NCCL_P2P_DISABLE=1`, `--disable-custom-all-reduce`.")
        )
    blocks += _evidence(documents)
    return blocks


def _status_rows(documents: Documents, marks: Sequence[Json], identity: Json) -> list[list[str]]:
    rows = []
    for kind, title in (("p2p", "paths between GPUs"), ("integrity", "each GPU by itself")):
        found = documents.get(kind, ())
        if not found:
            rows.append([title, "not checked yet", "", ""])
            continue
        newest = found[0]
        known = newest.get("identity")
        stale = differences(known, identity) if isinstance(known, dict) else ["its machine is unknown"]
        revoked = revoked_by(newest, marks)
        reasons = [*(f"suspect: {why}" for why in revoked), *(f"stale: {why}" for why in stale)]
        rows.append([title, _named(newest), str(newest.get("finished_at")), _shortened(reasons) or "yes"])
    for document in documents.get("weights", ()):
        details = document.get("details")
        model = details.get("model") if isinstance(details, dict) else None
        rows.append([f"weights of {model}", _named(document), str(document.get("finished_at")), ""])
    return rows


def _shortened(reasons: Sequence[str]) -> str:
    more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}" if reasons else ""


def _named(document: Json) -> str:
    class_ = document.get("class")
    return f"{document.get('verdict')} ({class_})" if class_ else str(document.get("verdict"))


def _matrices(boots: Sequence[Boot]) -> list[Block]:
    blocks: list[Block] = []
    for boot in boots[-_SHOWN_BOOTS:]:
        run = boot.last
        count = f", {len(boot.runs)} runs" if len(boot.runs) > 1 else ""
        same = "" if len({one.bad_pairs() for one in boot.runs}) == 1 else ", not all with this result"
        blocks.append(Paragraph(f"Boot {boot.boot_id[:8]}, {run.at[:10]}, kernel {run.kernel}{count}{same}:"))
        blocks.append(_matrix(run))
    return blocks


def _matrix(run: Run) -> Table:
    by_source = run.by_source()
    rows = []
    for gpu in run.gpus:
        cells = [run.pairs.get((gpu.number, other.number), "") for other in run.gpus]
        rows.append([f"GPU {gpu.number} ({gpu.slot})", *cells, by_source[gpu.number]])
    return Table(["from \\ to", *(f"GPU {gpu.number}" for gpu in run.gpus), "as source"], rows)


def _changes(boots: Sequence[Boot]) -> list[Block]:
    last = boots[-1]
    blocks: list[Block] = []
    if len(last.runs) > 1:
        found = changes(last.runs[-2], last.runs[-1])
        moved = [text for text in found if "stayed" not in text]
        blocks.append(Paragraph("Since the last run: " + (" ".join(moved) or "nothing.")))
    if len(boots) > 1:
        blocks.append(Paragraph("Since the last boot:"))
        blocks.append(Items(changes(boots[-2].last, last.last) or ["Nothing."]))
    return blocks or [Paragraph("There is only one run.")]


def _evidence(documents: Documents) -> list[Block]:
    blocks: list[Block] = [Heading(2, "Evidence")]
    for kind in ("p2p", "integrity", "host"):
        found = documents.get(kind, ())
        sentences = found[0].get("evidence") if found else None
        if isinstance(sentences, list) and sentences:
            blocks += [Heading(3, kind), Items([str(sentence) for sentence in sentences[:60]])]
    return blocks
