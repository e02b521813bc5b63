"""Which service made a stored response, so that requests by its id reach the same engine, over restarts too.

A line per response, appended. Nothing is fsynced: what a killed process has written is safe, and when the
whole machine goes down, the engines lose the responses themselves (vLLM 0.27.1 to 0.32.0 has them in memory).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from wake_router.durable import DurableWriteError, replace_file

SCHEMA_VERSION: Final = 1
REMEMBERED: Final = 10_000
"""The oldest beyond so many are forgotten."""


class ResponseIds:
    """Ids and their services, in memory and in one file."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """`tell` hears what goes wrong with the file; the ids are still known until the router ends."""
        self._path = path
        self._tell = tell
        self._known: OrderedDict[str, str] = OrderedDict()
        self._file: IO[bytes] | None = None
        self._lines = 0
        self._read()
        self._rewrite()

    def service_of(self, response_id: str) -> str | None:
        """The name of the service that made a response; None when it isn't known."""
        return self._known.get(response_id)

    def remember(self, response_id: str, service: str) -> None:
        """Note who made a response. Blocks for a write to the page cache at most."""
        self._known[response_id] = service
        self._known.move_to_end(response_id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if self._lines >= 2 * REMEMBERED:
            self._rewrite()
            return
        self._append(_line(response_id, service))

    def close(self) -> None:
        """Nothing more will be remembered."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._lines += 1
        except OSError as error:
            self._tell(f"{self._path} can't be written: {error.strerror}. Make room.")
            self.close()

    def _rewrite(self) -> None:
        """Leave out what is forgotten, and append from there on."""
        self.close()
        lines = [_header(), *(_line(*item) for item in self._known.items())]
        try:
            replace_file(self._path, b"".join(lines))
            self._file = self._path.open("ab", buffering=0)
        except DurableWriteError as error:
            self._tell(str(error))
        except OSError as error:
            self._tell(f"{self._path} can't be opened: {error.strerror}.")
        self._lines = len(self._known)

    def _read(self) -> None:
        """Lines that can't be read, and files of another version, are left out."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return
        if not lines or lines[0] != _header().strip():
            return
        for line in lines[1:]:
            item = _parse(line)
            if item is not None:
                self._known[item[0]] = item[1]
                self._known.move_to_end(item[0])
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _header() -> bytes:
    return json.dumps({"schema_version": SCHEMA_VERSION}).encode() + b"\n"


def _line(response_id: str, service: str) -> bytes:
    return json.dumps([response_id, service]).encode() + b"\n"


def _parse(line: bytes) -> tuple[str, str] | None:
    try:
        item = json.loads(line)
    except ValueError:
        return None
    match item:
        case [str(response_id), str(service)]:
            return response_id, service
        case _:
            return None
