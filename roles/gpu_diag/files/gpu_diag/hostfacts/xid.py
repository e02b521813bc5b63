"""What the driver's Xid numbers mean, in our words. Source of the facts: NVIDIA's "XID Errors" documentation.

``kind`` groups them by what they say about the machine: ``memory`` and ``dma`` make evidence about a GPU
suspect.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """Severity (info, warning, error, fatal), kind, and a sentence."""

    severity: str
    kind: str
    sentence: str


_UNKNOWN = Meaning("warning", "unknown", "This Xid is not in the catalogue of this tool.")

_CATALOGUE = {
    8: Meaning("error", "engine", "The GPU stopped processing a channel in time."),
    13: Meaning(
        "warning", "application", "An exception in the graphics engine; mostly a fault of the program."
    ),
    31: Meaning("error", "memory", "A GPU engine used an address that is not mapped (MMU fault)."),
    32: Meaning("error", "dma", "A command stream reached the GPU damaged; often the PCI Express path."),
    38: Meaning("error", "driver", "A firmware error that the driver reports."),
    43: Meaning(
        "warning", "application", "The GPU stopped a program's channel; mostly a fault of the program."
    ),
    45: Meaning(
        "info", "application", "Channels were cleaned up after another error or the end of a program."
    ),
    48: Meaning("fatal", "memory", "An ECC error of two bits that can't be corrected."),
    61: Meaning("error", "firmware", "The GPU's internal controller stopped."),
    62: Meaning("error", "firmware", "The GPU's internal controller halted."),
    63: Meaning("warning", "memory", "A damaged row or page of memory was recorded to be replaced."),
    64: Meaning("fatal", "memory", "A damaged row or page of memory could not be replaced."),
    69: Meaning("warning", "application", "An error in a graphics class; mostly a fault of the program."),
    74: Meaning("error", "nvlink", "An NVLink error between GPUs, or to a switch."),
    79: Meaning("fatal", "bus", "The GPU has fallen off the bus: it no longer answers."),
    92: Meaning("warning", "memory", "Corrected ECC errors come at a high rate."),
    94: Meaning("error", "memory", "An ECC error that can't be corrected, contained to one program."),
    95: Meaning("fatal", "memory", "An ECC error that can't be corrected and was not contained."),
    109: Meaning("error", "engine", "A context switch did not end in time."),
    119: Meaning("error", "firmware", "The GPU's system processor (GSP) did not answer the driver in time."),
    120: Meaning("error", "firmware", "The GPU's system processor (GSP) reported an error."),
    121: Meaning("warning", "nvlink", "A link error between the processor and the GPU (C2C)."),
    140: Meaning("fatal", "memory", "An ECC error that was not recovered from."),
    143: Meaning("fatal", "driver", "The GPU could not be initialised."),
    145: Meaning("error", "nvlink", "An NVLink error (link level)."),
    149: Meaning("error", "nvlink", "An NVLink error (network level)."),
    154: Meaning(
        "warning", "state", "The action that is needed to recover the GPU changed; the line says to what."
    ),
}


def meaning_of(code: int) -> Meaning:
    """The meaning of an Xid; an unknown one is said to be unknown."""
    return _CATALOGUE.get(code, _UNKNOWN)
