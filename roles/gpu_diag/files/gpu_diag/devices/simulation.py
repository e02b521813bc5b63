"""A simulated machine from a text such as ``zeroed/one_source+stale`` or ``hang``."""

from __future__ import annotations

from gpu_diag.devices.faults import UnknownFaultError, fault_names, make_faults
from gpu_diag.devices.simulated import MACHINE_EVENTS, SimulatedDevices
from gpu_diag.exits import UsageError
from gpu_diag.p2p.plan import words_between_devices

HEALTHY = "healthy"


def simulation_names() -> list[str]:
    """What can be asked for, beside combinations."""
    return [HEALTHY, *fault_names(), *MACHINE_EVENTS]


def simulated_machine(text: str, seed: int, count: int, rounds: int) -> SimulatedDevices:
    """The machine. Raises UsageError where the text names no fault."""
    names = [name for name in text.split("+") if name != HEALTHY]
    events = [name for name in names if name in MACHINE_EVENTS]
    faults = "+".join(name for name in names if name not in MACHINE_EVENTS)
    words = max(1, words_between_devices(count, rounds))
    try:
        made = make_faults(faults, seed, count, words) if faults else []
    except UnknownFaultError as error:
        raise UsageError(str(error)) from error
    return SimulatedDevices(count, made, events)
