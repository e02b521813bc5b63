"""Keep the file for the textfile collector of Prometheus' node exporter up to date."""

from __future__ import annotations

import os
from pathlib import Path

from .gpu_diag_box import Question, discover
from .gpu_diag_metrics import metrics


def is_current(path: Path, text: str) -> bool:
    """Whether the file holds that text. Raises OSError where it can't be read."""
    return path.is_file() and path.read_text() == text


def metrics_text(evidence: str) -> str:
    """The metrics of the evidence on the box."""
    found = discover(Question(evidence=evidence))["evidence"]
    return metrics(found if isinstance(found, dict) else {})


def write(path: Path, text: str) -> None:
    """Replace the file as a whole: the collector reads it at any time. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
