"""Bodies of held requests: small ones stay in memory, large ones go to a temporary file."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Final

SPOOL_ABOVE_BYTES: Final = 1024 * 1024


class Body:
    """A request's body that can be sent any number of times. Use it as a context manager."""

    def __init__(self, content: bytes, folder: Path) -> None:
        self._content: bytes | None = content
        self._folder = folder
        self._file: Path | None = None
        self.size = len(content)

    async def make_small(self) -> None:
        """Move a large body to a file; it stays in memory when that fails."""
        if self._content is None or self.size <= SPOOL_ABOVE_BYTES:
            return
        with contextlib.suppress(OSError):
            self._file = await asyncio.to_thread(_write, self._folder, self._content)
            self._content = None

    def open(self) -> bytes | IO[bytes]:
        """The content: bytes, or a file that the sender closes. Raises OSError when it has been lost."""
        if self._content is not None:
            return self._content
        assert self._file is not None
        return self._file.open("rb")

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _write(folder: Path, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(content)
    return Path(file.name)


def clear(folder: Path) -> None:
    """Remove what an earlier life of the router has left; raises nothing."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
