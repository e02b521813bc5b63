"""What all commands share: the instance, its router, and how output is written."""

from __future__ import annotations

import getpass
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from vllmctl import http, names
from vllmctl.box import Box, find_box

Json = dict[str, Any]


@dataclass
class Session:
    """One run of the command."""

    instance: str | None = None
    _box: Box | None = field(default=None, repr=False)

    @property
    def box(self) -> Box:
        """The instance; raises CommandError."""
        if self._box is None:
            self._box = find_box(self.instance)
        return self._box

    def status(self) -> Json:
        """What the router says of all services; raises CommandError."""
        return http.get(f"{self.box.admin_url}/admin/status")

    def service(self, wanted: str) -> Json:
        """The service of a name, alias or model; raises CommandError."""
        return names.resolve(self.status()["services"], wanted)

    def order(self, path: str, seconds: float) -> Json:
        """Give an order; raises CommandError."""
        return http.post(f"{self.box.admin_url}/admin/{path}", self.box.token(), seconds, operator())


def operator() -> str:
    """Who asks, for the router's log."""
    try:
        return f"vllmctl, {getpass.getuser()}"
    except (OSError, KeyError):
        return "vllmctl"


def console() -> Console:
    """Standard output; wide where nobody watches, so that no cell is cut in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_json(document: Any) -> None:
    """One JSON document on standard output and nothing else."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A line of plain text on standard output."""
    print(text, flush=True)


def warn(text: str) -> None:
    """A line on standard error about what is missing in the answer."""
    print(text, file=sys.stderr, flush=True)


def hint(text: str) -> None:
    """Something for a person who watches, never for a program that reads."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
