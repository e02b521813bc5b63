"""How a command shows its evidence: a summary line first, or the document and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpu_diag.evidence import Evidence


def print_evidence(evidence: Evidence, as_json: bool, meaning: Mapping[str, str], subject: str) -> None:
    """Print the evidence of a probe."""
    if as_json:
        print(json.dumps(evidence.document(), indent=1))
        return
    class_ = f" ({evidence.class_})" if evidence.class_ else ""
    print(f"{evidence.verdict}{class_}: {subject}: {meaning[evidence.verdict]}")
    for sentence in evidence.evidence:
        print(f"  {sentence}")
    for advice in evidence.remediation:
        print(f"  What to do: {advice}")
