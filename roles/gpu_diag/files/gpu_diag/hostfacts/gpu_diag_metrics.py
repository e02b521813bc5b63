"""Metrics for the textfile collector of Prometheus' node exporter, from the newest evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

Json = dict[str, object]

_PATH_STATES = ("clean", "corrupt", "hang", "inconclusive", "not_applicable")
_WEIGHTS_STATES = ("verified", "values_only", "structure_only", "unverified", "failed")
_HELP = {
    "gpu_diag_last_run_timestamp_seconds": "When the newest evidence of a probe was made.",
    "gpu_diag_verdict": "1 for the verdict that a probe gave.",
    "gpu_diag_p2p_pair_ok": "1 where an ordered pair of GPUs was clean, 0 where it was corrupt or hung.",
    "gpu_diag_weights_verdict": "1 for the verdict on a model's weights.",
}


def metrics(evidence: Mapping[str, Sequence[Json]]) -> str:
    """The text of the file; ``evidence`` are documents by kind, the newest first."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for kind in ("host", "integrity", "p2p", "weights"):
        newest = max(evidence.get(kind, ()), key=lambda one: str(one.get("finished_at")), default=None)
        if newest is not None:
            samples["gpu_diag_last_run_timestamp_seconds"] += _time({"probe": kind}, newest)
    for kind in ("integrity", "p2p"):
        for document in evidence.get(kind, ())[:1]:
            samples["gpu_diag_verdict"] += _states({"probe": kind}, _PATH_STATES, document)
    for document in evidence.get("p2p", ())[:1]:
        samples["gpu_diag_p2p_pair_ok"] += _pairs(document)
    for document in evidence.get("weights", ()):
        details = document.get("details")
        labels = {"model": str(details.get("model") if isinstance(details, dict) else None)}
        samples["gpu_diag_weights_verdict"] += _states(labels, _WEIGHTS_STATES, document)
    lines = [line for name, found in samples.items() if found for line in _family(name, found)]
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, samples: Iterable[str]) -> Iterable[str]:
    yield f"# HELP {name} {_HELP[name]}"
    yield f"# TYPE {name} gauge"
    yield from (f"{name}{sample}" for sample in samples)


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def _time(labels: Mapping[str, str], document: Json) -> Iterable[str]:
    try:
        moment = datetime.fromisoformat(str(document.get("finished_at")))
    except ValueError:
        return
    yield f"{_labels(labels)} {moment.timestamp():.3f}"


def _states(labels: Mapping[str, str], states: Iterable[str], document: Json) -> Iterable[str]:
    for state in states:
        yield f"{_labels({**labels, 'state': state})} {int(document.get('verdict') == state)}"


def _pairs(document: Json) -> Iterable[str]:
    details = document.get("details")
    pairs = details.get("pairs") if isinstance(details, dict) else None
    for pair in pairs if isinstance(pairs, list) else []:
        if pair.get("verdict") in ("clean", "corrupt", "hang"):
            labels = {"src": str(pair.get("source")), "dst": str(pair.get("destination"))}
            yield f"{_labels(labels)} {int(pair['verdict'] == 'clean')}"
