"""Whether NCCL takes the way between the GPUs of a split model that the plan allows. Pure.

The plan imposes the way by settings; what NCCL makes of them stands in the engine's log. A way that is
forbidden is a failure. A log that tells nothing is none: the settings hold and the canary has answered, and a
new form of NCCL's lines must not make a healthy box undeployable. It is said as a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_diag.hostfacts import gpu_diag_nccl as nccl
else:
    from ansible.module_utils import gpu_diag_nccl as nccl

LINES_SHOWN = 4


@dataclass(frozen=True)
class Wanted:
    """What the plan says: the size of the largest group of processes, and whether the peer path is earned."""

    ranks: int
    peer_allowed: bool


@dataclass(frozen=True)
class Finding:
    """What a log showed: the kinds in use, and as sentences what the plan forbids and what is not shown.

    `lines` are those of the log that show what is forbidden.
    """

    kinds: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    not_shown: tuple[str, ...] = ()


def wanted_of(options: Iterable[Mapping[str, Any]]) -> dict[str, Wanted]:
    """The module's options by service."""
    return {one["service"]: Wanted(one["ranks"], one["peer_allowed"]) for one in options}


def judge(log: str, wanted: Wanted) -> Finding:
    """Compare an engine's log with the plan."""
    lines = log.splitlines()
    seen = nccl.parse_nccl_log(lines)
    not_shown = nccl.objections(seen, wanted.ranks, peer_allowed=True)
    found = nccl.objections(seen, wanted.ranks, wanted.peer_allowed)
    forbidden = [sentence for sentence in found if sentence not in not_shown]
    shown = nccl.peer_lines(lines) if forbidden else []
    return Finding(tuple(sorted(seen.kinds())), tuple(forbidden), tuple(shown), tuple(not_shown))


def problem(finding: Finding) -> str | None:
    """Why an engine may not serve, with the log's lines and what to do; None when it may."""
    if not finding.forbidden:
        return None
    more = len(finding.lines) - LINES_SHOWN
    shown = [*finding.lines[:LINES_SHOWN], *([f"and {more} more such line(s)"] if more > 0 else [])]
    return "\n".join(
        [
            f"{' '.join(finding.forbidden)} Its log says:",
            *shown,
            "The settings were given to it, so something in its image undoes them: deploy another image, or "
            "give the service one device.",
        ]
    )


def warning(finding: Finding) -> str | None:
    """What the log doesn't show, None when it shows all."""
    if not finding.not_shown:
        return None
    return (
        f"the way between its GPUs is not shown by its log, though the plan's settings for it hold. "
        f"{' '.join(finding.not_shown)}"
    )


def words(finding: Finding) -> str:
    """The ways in use, in a few words."""
    return f"GPU to GPU via {', '.join(finding.kinds)}" if finding.kinds else "GPU to GPU: not shown"
