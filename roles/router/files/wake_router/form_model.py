"""Finds the model's name in a multipart form, and exchanges only the bytes of that field."""

from __future__ import annotations

import re
from typing import Final

from wake_router.model_name import NamedBody, UnusableBodyError

_BOUNDARY: Final = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))""", re.IGNORECASE)
_LINE_END: Final = re.compile(rb"[ \t]*\r\n")
_HEADER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*([^\r\n]*)")
_PARAMETER: Final = re.compile(rb""";\s*([^\s=;"]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s";]+))\s*""", re.DOTALL)
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
    """Where the values of all fields `model` are, and whether `stream` is true.

    All parts have to be well formed: where a delimiter could be read in two ways, an engine might see another
    form than the router.
    """
    spans: list[tuple[int, int]] = []
    stream = False
    position = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if not body.startswith(delimiter, position):
        raise UnusableBodyError("The form is malformed: its boundary never comes.")
    position += len(delimiter)
    while not body.startswith(b"--", position):
        line_end = _LINE_END.match(body, position)
        if line_end is None:
            raise UnusableBodyError("The form is malformed: something follows a boundary on its line.")
        head_end = body.find(b"\r\n\r\n", line_end.end() - 2, line_end.end() + _HEAD_MAX_BYTES)
        end = body.find(b"\r\n" + delimiter, head_end)
        if head_end < 0 or end < 0:
            raise UnusableBodyError("The form is malformed: a part doesn't end.")
        start = head_end + 4
        name = _field_name(body[line_end.end() : head_end])
        if name == b"model":
            spans.append((start, max(start, end)))
        elif name == b"stream":
            stream = body[start:end].strip().lower() in (b"true", b"1")
        position = end + 2 + len(delimiter)
    return spans, stream


def _field_name(head: bytes) -> bytes | None:
    """The name of a plain field; None for a file. Raises UnusableBodyError for what is no part of a form."""
    lines = [_HEADER.fullmatch(line) for line in head.split(b"\r\n")]
    values = [
        line.group(1)
        for line in lines
        if line is not None and line.group().lower().startswith(b"content-disposition:")
    ]
    if None in lines or len(values) != 1:
        raise UnusableBodyError("The form is malformed: a part's header can't be read.")
    kind, semicolon, rest = values[0].partition(b";")
    found = _PARAMETER.findall(semicolon + rest)
    parameters = {name.lower(): quoted or plain for name, quoted, plain in found}
    well_formed = len(parameters) == len(found) and not _PARAMETER.sub(b"", semicolon + rest)
    if kind.strip().lower() != b"form-data" or not well_formed or b"name" not in parameters:
        raise UnusableBodyError("The form is malformed: a part isn't named as form-data.")
    return None if {b"filename", b"filename*"} & set(parameters) else parameters[b"name"]
