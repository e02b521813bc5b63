"""Would a router start with these settings? Asked before a running one is replaced.

A deployment hands over what the router will be started with: a question on standard input,
`{"environment": {name: value}, "files": {path: content}}`. The last line of the answer is
`{"problems": {}}`, or `{"problems": {"router": sentence}}`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wake_router.main import START_ERRORS, read_all


def answer(question: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What stands against a start, by subject; files are looked for among the question's, nowhere else."""
    environment: Mapping[str, str] = question["environment"]
    files: Mapping[str, str] = question["files"]
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            copy = Path(folder + path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(content, encoding="utf-8")
        copied = {name: folder + value if value in files else value for name, value in environment.items()}
        try:
            read_all(copied)
        except START_ERRORS as error:
            return {"problems": {"router": str(error).replace(folder, "")}}
    return {"problems": {}}
