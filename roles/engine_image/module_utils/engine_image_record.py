"""The record of images on the box: read and write (thin shell around the rules in engine_image_pins)."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.module_utils.box_tools_files import write_json
from ansible.module_utils.engine_image_pins import Pin, PinError, pins_document, read_pins


def load(path: Path) -> dict[str, Pin]:
    """The pins recorded at `path`; none when there is no such file. Raises PinError."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PinError(
            f"The record of images {path} can't be read ({error}); restore it, or move it away to pin the "
            "images anew."
        ) from None
    pins: dict[str, Pin] = read_pins(document, str(path))
    return pins


def remember(path: Path, reference: str, pin: Pin) -> bool:
    """Record `pin` for `reference`; tells whether that changed the record."""
    pins = load(path)
    if pins.get(reference) == pin:
        return False
    write_json(path, pins_document({**pins, reference: pin}))
    return True
