"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

LOWEST, COUNT = 20_000, 11_000
"""Below those that the kernel gives to connections, so that none takes a port before its server does."""

_given = random.SystemRandom().randrange(COUNT)


def free_port() -> int:
    """A port that nobody listens on and that this process hasn't given out yet.

    Drawing each by lot gave two servers of one test the same port in about every third run of the suite.
    """
    global _given
    while True:
        _given += 1
        port = LOWEST + _given % COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
