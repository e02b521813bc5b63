"""Files of API keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def keys_file(folder: Path, *secrets: str, **limits: int) -> Path:
    """Keys by their secrets, all with the same limits; the file is replaced."""
    path = folder / "keys.json"
    folder.mkdir(parents=True, exist_ok=True)
    keys = [
        {"name": f"key-{secret}", "sha256": hashlib.sha256(secret.encode()).hexdigest(), **limits}
        for secret in secrets
    ]
    path.write_text(json.dumps({"schema_version": 1, "keys": keys}))
    return path
