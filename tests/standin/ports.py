"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import os
import random
import socket

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
COUNT = 2_500
LOWEST = 20_000 + COUNT * (WORKER % 4)
"""Below those that the kernel gives to connections, so that none takes a port before its server does.

Processes that run tests side by side each have ports of their own.
"""

_given = random.SystemRandom().randrange(COUNT)


def free_port() -> int:
    """A port that nobody listens on and that this process hasn't given out yet.

    Drawing each by lot could give two servers of one test the same port before either listened.
    """
    global _given
    while True:
        _given += 1
        port = LOWEST + _given % COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
