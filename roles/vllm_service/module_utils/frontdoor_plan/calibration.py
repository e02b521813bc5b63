"""What was measured of a service's memory: the schema of the files in the instance's folder `calibration`.

One JSON document for each service, `<service>.json`, written atomically by whoever measured it after the
service slept for the first time. A figure counts only for the very engine it was measured on: the same model
folder, image, split and kind of device; of another one it says nothing, and the plan estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

SCHEMA_VERSION = 1
LARGEST_BYTES = 2**50


class CalibrationError(ValueError):
    """A document is not a calibration; the message is a sentence."""


@dataclass(frozen=True)
class Calibration:
    """Memory of one engine as it was measured.

    `asleep_bytes_per_device` is what stays on each GPU at level 1 (the residue); `host_bytes_asleep` what the
    engine's processes hold of the host's memory then; `awake_bytes_per_device` what they hold of each GPU
    awake. On CPU devices the first and the last are 0, and `host_bytes_asleep` is what the processes come to
    hold at any depth, since they all are in the host's memory. `measured_at` is ISO 8601 in UTC.
    """

    service: str
    model_folder: str
    image_id: str
    device_name: str
    tensor_parallel: int
    pipeline_parallel: int
    awake_bytes_per_device: int
    asleep_bytes_per_device: int
    host_bytes_asleep: int
    measured_at: str

    def document(self) -> dict[str, Any]:
        """The JSON document, as the writer leaves it."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{each.name: getattr(self, each.name) for each in fields(self)},
        }


_NUMBERS = ("awake_bytes_per_device", "asleep_bytes_per_device", "host_bytes_asleep")
_PARTS = ("tensor_parallel", "pipeline_parallel")


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the document: no other keys, no negative sizes."""
    text = {"type": "string", "minLength": 1}
    size = {"type": "integer", "minimum": 0, "maximum": LARGEST_BYTES}
    part = {"type": "integer", "minimum": 1, "maximum": 64}
    properties = {
        each.name: size if each.name in _NUMBERS else part if each.name in _PARTS else text
        for each in fields(Calibration)
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Measured memory of a service of vllm-frontdoor",
        "type": "object",
        "properties": {"schema_version": {"const": SCHEMA_VERSION}, **properties},
        "required": ["schema_version", *properties],
        "additionalProperties": False,
    }


def parse_calibration(document: Any) -> Calibration:
    """The calibration in a document. Raises CalibrationError with a sentence where its form is another."""
    if not isinstance(document, Mapping):
        raise CalibrationError("it is not a JSON object")
    names = [each.name for each in fields(Calibration)]
    if document.get("schema_version") != SCHEMA_VERSION:
        raise CalibrationError(f"it has not the schema version {SCHEMA_VERSION}")
    if set(document) != {"schema_version", *names}:
        odd = sorted(set(map(str, document)) ^ {"schema_version", *names})
        raise CalibrationError(f"it misses or adds the keys {', '.join(odd)}")
    return Calibration(**{name: _value(name, document[name]) for name in names})


def _value(name: str, value: Any) -> Any:
    if name in _NUMBERS or name in _PARTS:
        least, most = (1, 64) if name in _PARTS else (0, LARGEST_BYTES)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise CalibrationError(f"{name} is no whole number from {least} to {most}")
        return value
    if not isinstance(value, str) or not value:
        raise CalibrationError(f"{name} is no text")
    return value
