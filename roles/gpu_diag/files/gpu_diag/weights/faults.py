"""What can be wrong with a file of weights, as data and as a sentence."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

Json = dict[str, object]

_LONGEST_SHOWN_NAME = 160


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: its class, a sentence, and where (``offset``: bytes from the file's start)."""

    class_: str
    sentence: str
    file: str
    tensor: str | None = None
    offset: int | None = None

    def document(self) -> Json:
        """The fault as it stands in a document."""
        fields = asdict(self)
        return {"class": fields.pop("class_"), **fields}


def shown(name: str) -> str:
    """A name out of a file, safe to print: control characters escaped, and not endless."""
    escaped = json.dumps(name)[1:-1]
    return escaped if len(escaped) <= _LONGEST_SHOWN_NAME else escaped[:_LONGEST_SHOWN_NAME] + "…"
