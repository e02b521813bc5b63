"""Exit statuses of every command, and how a command ends that could not run."""

from __future__ import annotations

CLEAN = 0
DEGRADED = 1
WRONG = 2
NOT_RUN = 3
USAGE = 64

_OF_VERDICT = {
    "clean": CLEAN,
    "verified": CLEAN,
    "values_only": CLEAN,
    "structure_only": DEGRADED,
    "corrupt": WRONG,
    "hang": WRONG,
    "failed": WRONG,
    "inconclusive": NOT_RUN,
    "unverified": NOT_RUN,
    "not_applicable": CLEAN,
}


class CouldNotRunError(Exception):
    """The tool could not do its work (which says nothing about the machine); the message is a sentence."""


class UsageError(Exception):
    """The options don't go together; the message is a sentence."""


def of_verdict(verdict: str) -> int:
    """The exit status for a verdict."""
    return _OF_VERDICT[verdict]
