"""What `doctor` makes of what it has seen. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from vllmctl.measures import duration, size

Json = dict[str, Any]

DISK_WARNING = 0.10
DISK_CRITICAL = 0.03
_BAD_VERDICTS = frozenset({"corrupt", "hang", "failed"})
EVIDENCE_OLD_SECONDS = 30 * 86400.0
STARTING_LONG_SECONDS = 1800.0


class Level(IntEnum):
    """Nagios' states, by their exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_GRAVITY = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL)


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it (empty: nothing)."""

    level: Level
    check: str
    text: str
    advice: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """The level that counts: critical before warning before unknown."""
    return max((finding.level for finding in findings), key=_GRAVITY.index, default=Level.UNKNOWN)


def summary(findings: Sequence[Finding]) -> str:
    """The first line, as monitoring shows it."""
    level = worst(findings)
    bad = [finding for finding in findings if finding.level is not Level.OK]
    what = bad[0].text if len(bad) == 1 else f"{len(bad)} of {len(findings)} checks found something"
    return f"VLLM-FRONTDOOR {level.name} - {what if bad else f'{len(findings)} checks are well'}"


@dataclass(frozen=True)
class Devices:
    """What people call devices, by key; and the keys of those that services are on."""

    names: Mapping[str, str]
    in_use: frozenset[str]


def devices_of(status: Json) -> Devices:
    """The devices in the router's status."""
    used = frozenset(key for service in status["services"] for key in service.get("devices", []))
    told = {each["device"]: each["name"] for each in status.get("device_memory", [])}
    return Devices({key: key for key in used} | told, used)


def engines(status: Json) -> Iterator[Finding]:
    """One finding per service, and per cordoned device."""
    if not status["services"]:
        yield Finding(Level.WARNING, "engines", "The router knows no service.", "Deploy again.")
    for service in status["services"]:
        yield _engine(service)
    names = devices_of(status).names
    for device in (names.get(key, key) for key in status.get("cordoned", [])):
        text = f"Device {device} is cordoned, so nothing on it is woken."
        yield Finding(Level.WARNING, "devices", text, f"When it is well: vllmctl uncordon {device}")


def _engine(service: Json) -> Finding:
    name, conditions = service["name"], set(service["conditions"])
    check, since = f"engine {name}", duration(service["since_seconds"])
    reason = service["reason"]
    if conditions & {"quarantined", "failed"}:
        word = "failed" if "failed" in conditions else "quarantined"
        advice = f"Read 'vllmctl why {name}' and 'vllmctl logs {name}'; order a try: vllmctl restart {name}"
        return Finding(Level.CRITICAL, check, f"{name} is {word}: {reason}.", advice)
    if service["depth"] == "stopped":
        advice = f"Read 'vllmctl logs {name}'; if its container is gone, deploy again."
        return Finding(Level.CRITICAL, check, f"{name} is stopped for {since}: {reason}.", advice)
    if conditions & {"draining", "maintenance"}:
        advice = f"When the work on it is done: vllmctl prove {name}"
        return Finding(Level.WARNING, check, f"{name} is in maintenance, its requests wait.", advice)
    if service["depth"] == "restarting" and service["since_seconds"] > STARTING_LONG_SECONDS:
        return Finding(
            Level.WARNING, check, f"{name} is starting for {since}.", f"Follow it: vllmctl logs -f {name}"
        )
    return Finding(Level.OK, check, f"{name} is {service['depth'].replace('_', ' ')} for {since}.")


def memory(status: Json) -> Iterator[Finding]:
    """One finding per device whose use was measured at the present depths."""
    for device in status.get("device_memory", []):
        if device["over_plan"] is not None:
            yield _device_memory(device)


def _device_memory(device: Json) -> Finding:
    name, used, allowed = device["name"], size(device["used_bytes"]), size(device["planned_bytes"])
    check, text = f"memory {name}", f"On device {name} {used} are used, the plan allows {allowed} now."
    if not device["over_plan"]:
        return Finding(Level.OK, check, text)
    advice = "'vllmctl status' shows who holds what, 'nvidia-smi' who else is there; measure: ./box calibrate"
    return Finding(Level.WARNING, check, text, advice)


def disk(folder: str, total_bytes: int, free_bytes: int, read_only: bool) -> Finding:
    """The file system that a folder lies on."""
    check = f"disk {folder}"
    if read_only:
        advice = "The kernel log says why ('dmesg'); mount it writable again."
        return Finding(Level.CRITICAL, check, f"{folder} is on a read-only file system.", advice)
    share = free_bytes / total_bytes if total_bytes else 0.0
    text = f"{folder} has {size(free_bytes)} of {size(total_bytes)} free."
    if share >= DISK_WARNING:
        return Finding(Level.OK, check, text)
    level = Level.CRITICAL if share < DISK_CRITICAL else Level.WARNING
    return Finding(level, check, text, "Remove models that nobody serves ('vllmctl list') or unused images.")


def clock(synchronised: bool | None) -> Finding:
    """Whether the kernel says that its clock follows a reference."""
    if synchronised is None:
        return Finding(Level.UNKNOWN, "clock", "The kernel doesn't tell whether its clock is right.")
    if synchronised:
        return Finding(Level.OK, "clock", "The clock is synchronised.")
    advice = "Run a time service (chrony or systemd-timesyncd): dates of evidence and logs depend on it."
    return Finding(Level.WARNING, "clock", "The clock is not synchronised.", advice)


def versions(by_service: Mapping[str, str | None]) -> Finding:
    """What vLLM each engine says it is; None where it didn't answer."""
    silent = sorted(name for name, version in by_service.items() if version is None)
    spoken = {version for version in by_service.values() if version is not None}
    if silent:
        advice = "An engine tells its version once it has started; 'vllmctl status' shows whether it has."
        return Finding(Level.UNKNOWN, "versions", f"No version is told by: {', '.join(silent)}.", advice)
    if len(spoken) > 1:
        told = ", ".join(f"{name} {version}" for name, version in sorted(by_service.items()))
        advice = "Deploy again, which brings all engines to one image."
        return Finding(Level.WARNING, "versions", f"The engines run different versions: {told}.", advice)
    return Finding(Level.OK, "versions", f"All engines run vLLM {', '.join(map(str, spoken)) or '(none)'}.")


def evidence(
    view: Json, gone: frozenset[str] = frozenset(), devices: Devices | None = None
) -> Iterator[Finding]:
    """What the evidence says, its age, and what has revoked it. `gone`: folders of models that were removed,
    whose evidence says nothing any more.
    """
    if not view["present"]:
        advice = "Deploy again, which gives the router the folder."
        yield Finding(Level.UNKNOWN, "evidence", "The router has no folder of evidence.", advice)
        return
    for problem in view["problems"]:
        yield Finding(Level.WARNING, "evidence", problem, "Remove what is damaged, and run ./box diagnose.")
    for path in view["paths"]:
        yield _path(path, devices or Devices({}, frozenset()))
    for weights in view["weights"]:
        if weights["model"] not in gone:
            yield _weights(weights)


def _path(path: Json, devices: Devices) -> Finding:
    check, advice = f"evidence {path['kind']}", "Run ./box diagnose."
    verdict, age = path["verdict"], duration(path["age_seconds"])
    text = f"{verdict}, probed {age} ago."
    if not path["of_this_boot"]:
        text = f"{verdict} when last probed, in an earlier boot, {age} ago."
    if path["suspicions"]:
        text += f" It is suspect: {path['suspicions'][0]}"
    if path["kind"] == "integrity" and verdict in _BAD_VERDICTS:
        # A GPU that was bad by itself is not mended by a boot.
        found = [_fault(each, devices) for each in path.get("condemned", [])] or path.get("sentences", [])
        return Finding(Level.CRITICAL, check, " ".join([text, *found]), _cordon_advice(path, devices))
    if path["suspicions"]:
        return Finding(Level.CRITICAL, check, text, advice)
    if not path["of_this_boot"]:
        return Finding(Level.WARNING, check, text, advice)
    if verdict in ("clean", "not_applicable"):
        return Finding(Level.OK, check, text)
    if path["kind"] == "p2p" and verdict in ("corrupt", "hang"):
        return Finding(Level.OK, check, f"{text} Services are planned without this path.")
    return Finding(Level.WARNING, check, text, advice)


def _fault(condemned: Json, devices: Devices) -> str:
    key, model = condemned["device"], condemned["name"]
    who = (
        f"{devices.names[key]} ({model})" if key in devices.names else f"GPU {condemned['number']} ({model})"
    )
    return f"{who} is {condemned['verdict']}: {' '.join(condemned['faults']) or 'no reason was recorded.'}"


def _cordon_advice(path: Json, devices: Devices) -> str:
    condemned = [each["device"] for each in path.get("condemned", [])]
    if not condemned:  # of a router of an earlier release, or a probe that was cut off
        return (
            "Nothing should be woken on that GPU: vllmctl cordon DEVICE ('vllmctl status' shows devices); "
            "then run ./box diagnose."
        )
    used = [devices.names.get(key, key) for key in condemned if key in devices.in_use]
    if not used:
        return "No service is on it; give it none before ./box diagnose finds it clean."
    orders = ", ".join(f"vllmctl cordon {name}" for name in used)
    return f"Nothing should be woken on it: {orders}; then run ./box diagnose."


def _weights(weights: Json) -> Finding:
    name = str(weights["model"]).rsplit("/", 1)[-1]
    text = f"{name}: {weights['verdict']}, checked {duration(weights['age_seconds'])} ago."
    check = f"weights {name}"
    if weights["verdict"] == "failed":
        return Finding(Level.CRITICAL, check, text, "Fetch the model again, and run ./box diagnose.")
    if weights["verdict"] in ("unverified", "structure_only"):
        return Finding(Level.WARNING, check, text, "Run ./box diagnose; record the publisher's checksums.")
    if weights["age_seconds"] > EVIDENCE_OLD_SECONDS:
        return Finding(Level.WARNING, check, text, "Run ./box diagnose again.")
    return Finding(Level.OK, check, text)
