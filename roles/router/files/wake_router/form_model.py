"""Finds the model's name in a multipart form, and exchanges only the bytes of that field."""

from __future__ import annotations

import re
from typing import Final

from wake_router.model_name import NamedBody, UnusableBodyError

_BOUNDARY: Final = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))""", re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"^content-disposition:\s*form-data\s*;(.*)$", re.IGNORECASE | re.MULTILINE)
_NAME: Final = re.compile(rb'(?:^|;)\s*name="?([^";\r\n]*)"?', re.IGNORECASE)
_HEAD_MAX_BYTES: Final = 16 * 1024


def find_model_in_form(content_type: str, body: bytes) -> NamedBody:
    """Read a multipart form with a field `model`; raises UnusableBodyError."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise UnusableBodyError("The body must be multipart/form-data with a boundary.")
    delimiter = b"--" + (found.group(1) or found.group(2)).encode("latin-1")
    spans, stream = _scan_parts(body, delimiter)
    if not spans:
        raise UnusableBodyError("The form names no model: the field 'model' is missing.", "model")
    start, end = spans[-1]
    try:
        model = body[start:end].decode().strip()
    except UnicodeDecodeError:
        raise UnusableBodyError("The field 'model' must be UTF-8.", "model") from None
    if not model:
        raise UnusableBodyError("The field 'model' must not be empty.", "model")
    return NamedBody(body, model, tuple(spans), stream, str.encode)


def _scan_parts(body: bytes, delimiter: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Where the values of all fields `model` are, and whether `stream` is true."""
    spans: list[tuple[int, int]] = []
    stream = False
    position = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if not body.startswith(delimiter, position):
        raise UnusableBodyError("The form is malformed: its boundary never comes.")
    position += len(delimiter)
    while not body.startswith(b"--", position):
        head_end = body.find(b"\r\n\r\n", position, position + _HEAD_MAX_BYTES)
        end = body.find(b"\r\n" + delimiter, head_end)
        if head_end < 0 or end < 0:
            raise UnusableBodyError("The form is malformed: a part doesn't end.")
        start = head_end + 4
        name = _field_name(body[position:head_end])
        if name == b"model":
            spans.append((start, max(start, end)))
        elif name == b"stream":
            stream = body[start:end].strip().lower() in (b"true", b"1")
        position = end + 2 + len(delimiter)
    return spans, stream


def _field_name(head: bytes) -> bytes | None:
    """The name of a plain field; None for a file or a part without a name."""
    disposition = _DISPOSITION.search(head)
    if disposition is None or b"filename" in disposition.group(1).lower():
        return None
    name = _NAME.search(disposition.group(1))
    return name.group(1) if name else None
