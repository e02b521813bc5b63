"""Collect the host's evidence: what the box is, and what the driver, the kernel and Docker say of its
GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from gpu_diag.hostfacts.gpu_diag_box import Json
from gpu_diag.hostfacts.gpu_diag_commands import Outcome, run_bounded
from gpu_diag.hostfacts.gpu_diag_parsers import parse_json_objects
from gpu_diag.hostfacts.kernel_log import Event, parse_kernel_log
from gpu_diag.hostfacts.topology import parse_nvlink_status, parse_peer_status, parse_topology

_SECONDS = 45.0
_MOST_EVENTS = 200
_PARAMETERS = Path("/proc/driver/nvidia/params")


def collect(box: Mapping[str, object]) -> tuple[Json, list[str]]:
    """The details of a host document beside the box, and sentences on what could not be asked."""
    problems: list[str] = []
    events = _events(problems)
    details: Json = {
        "kernel_events": [asdict(event) for event in events[-_MOST_EVENTS:]],
        "kernel_event_count": len(events),
        "driver_parameters": parse_parameters(_read(_PARAMETERS)),
        "container_runtimes": _runtimes(),
        **_from_driver(bool(box.get("gpus")), problems),
    }
    return details, problems


def _ask(command: list[str], problems: list[str]) -> str:
    outcome = run_bounded(command, _SECONDS)
    if outcome.problem is not None:
        problems.append(outcome.problem)
    return outcome.stdout if outcome.problem is None else ""


def _from_driver(has_gpus: bool, problems: list[str]) -> Json:
    if not has_gpus:
        return {"topology": {}, "peer_read": {}, "peer_write": {}, "nvlink": {}}
    links = parse_nvlink_status(_ask(["nvidia-smi", "nvlink", "--status"], problems))
    return {
        "topology": parse_topology(_ask(["nvidia-smi", "topo", "-m"], problems)),
        "peer_read": parse_peer_status(_ask(["nvidia-smi", "topo", "-p2p", "r"], problems)),
        "peer_write": parse_peer_status(_ask(["nvidia-smi", "topo", "-p2p", "w"], problems)),
        "nvlink": {uuid: [asdict(link) for link in of_gpu] for uuid, of_gpu in links.items()},
    }


def _events(problems: list[str]) -> list[Event]:
    """The kernel log, as ``dmesg`` prints it, or as the journal does where ``dmesg`` may not."""
    outcome: Outcome = run_bounded(["dmesg"], _SECONDS)
    if outcome.problem is not None:
        journal = run_bounded(
            ["journalctl", "--dmesg", "--boot", "--no-pager", "--output", "short"], _SECONDS
        )
        if journal.problem is not None:
            problems.append(f"the kernel log can't be read ({outcome.problem}): run this as root")
            return []
        outcome = journal
    return parse_kernel_log(outcome.stdout.splitlines())


def _runtimes() -> list[str] | None:
    outcome = run_bounded(["docker", "info", "--format", "{{json .Runtimes}}"], _SECONDS)
    found = parse_json_objects(outcome.stdout) if outcome.problem is None else []
    return sorted(found[0]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def parse_parameters(text: str) -> dict[str, str]:
    """The driver's parameters: ``Name: value`` lines of ``/proc/driver/nvidia/params``."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def sentences(box: Mapping[str, object], details: Mapping[str, object]) -> list[str]:
    """What stands out in the host's evidence. It explains verdicts and never improves one."""
    gpus = box.get("gpus")
    found = [f"{len(gpus) if isinstance(gpus, list) else 0} GPUs, kernel {box.get('kernel')}."]
    events = details.get("kernel_events")
    for event in events if isinstance(events, list) else []:
        if event.get("severity") in ("error", "fatal"):
            where = f"{event['pci_address']}: " if event.get("pci_address") else ""
            found.append(f"{where}{event['meaning']} ({event['text']})")
    return found
