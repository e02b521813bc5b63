"""The gate: every device of a service is tested in the present state of the machine, and a model is split
over several devices only where the path between them was tested as well.

A service on one device needs that device's integrity. A split one needs, for its very set, the integrity of
each device and a clean control arm (the path through the host's memory); GPUs need the whole p2p_check too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..devices import device_kind, devices_of, known_devices
from ..evidence import Evidence, Probe
from ..model import Desired, Device, Discovered, Refusal, Service
from ..sizes import parts_of

_SITE = "./box site -i INVENTORY"
_DIAGNOSE = "./box diagnose -i INVENTORY"
PROBE_NAMES = {"integrity": "integrity test", "control": "control arm", "p2p": "p2p_check"}


@dataclass(frozen=True)
class _Need:
    """A probe that services need to hold for their devices."""

    kind: str
    services: tuple[Service, ...]
    devices: tuple[Device, ...]

    @property
    def where(self) -> str:
        return " and ".join(f"{service.where}.devices" for service in self.services)

    @property
    def names(self) -> str:
        return ", ".join(device.name for device in self.devices)


def check(desired: Desired, discovered: Discovered, evidence: Evidence) -> list[Refusal]:
    """Every refusal that evidence about devices gives."""
    return [
        refusal for need in _needs(desired, discovered) for refusal in _of_need(need, discovered, evidence)
    ]


def probes_needed(desired: Desired, discovered: Discovered) -> list[str]:
    """The probes that have to be run before a plan can be made, for the devices as far as they are known."""
    kinds = {need.kind for need in _needs(desired, discovered)}
    return [kind for kind in ("integrity", "control", "p2p") if kind in kinds]


def cpu_devices_needed(desired: Desired, discovered: Discovered) -> int:
    """How many shares of the processor the probes have to test: 0 on GPUs, at least 2 for a control arm."""
    used = {
        device.key for need in _needs(desired, discovered) for device in need.devices if device.kind == "cpu"
    }
    return max(2, len(used)) if used else 0


def failed_devices(evidence: Evidence, devices: Iterable[Device]) -> dict[str, str]:
    """Devices whose integrity test failed in the present state of the machine, and the sentence that says so.

    Engines on them are stopped; missing or stale evidence stops nobody."""
    newest = evidence.newest("integrity")
    if newest is None or newest.differences:
        return {}
    verdicts = {device.key: _device_verdict(newest, device) for device in devices}
    return {
        key: f"the integrity test of {newest.finished_at} says {verdict}"
        for key, verdict in verdicts.items()
        if verdict in ("corrupt", "hang")
    }


def failed_control(evidence: Evidence) -> str | None:
    """A sentence where the newest word on the path through the host is that it fails; None otherwise."""
    newest = _newest_control(evidence)
    if newest is None or newest.differences or newest.control_arm != "failed":
        return None
    return f"the control arm of {newest.finished_at} failed"


def _needs(desired: Desired, discovered: Discovered) -> list[_Need]:
    known = known_devices(desired, discovered, device_kind(desired, discovered))
    services: dict[tuple[str, tuple[str, ...]], list[Service]] = defaultdict(list)
    by_key = {device.key: device for device in known.values()}
    for service in desired.services:
        devices = devices_of(service, known)
        keys = tuple(sorted({device.key for device in devices}))
        for key in keys:
            services["integrity", (key,)].append(service)
        if len(keys) == parts_of(service) > 1:
            gpus = all(device.kind == "cuda" for device in devices)
            services["p2p" if gpus else "control", keys].append(service)
    return _merged(
        [
            _Need(kind, tuple(users), tuple(by_key[key] for key in keys))
            for (kind, keys), users in sorted(services.items(), key=lambda each: each[0])
        ]
    )


def _merged(needs: list[_Need]) -> list[_Need]:
    """One need for all integrity tests: they are one document, which is there or not for all of them."""
    integrity = [need for need in needs if need.kind == "integrity"]
    if not integrity:
        return needs
    services = {service.name: service for need in integrity for service in need.services}
    devices = tuple(device for need in integrity for device in need.devices)
    return [
        _Need("integrity", tuple(services.values()), devices),
        *(need for need in needs if need.kind != "integrity"),
    ]


# --------------------------------------------------------------------------------------------- one need


def _of_need(need: _Need, discovered: Discovered, evidence: Evidence) -> Iterator[Refusal]:
    damaged = evidence.hidden_by(need.kind)
    if damaged is not None:
        yield Refusal(
            where=need.where,
            what=f"The newest evidence of the {PROBE_NAMES[need.kind]} can't be read: {damaged.path}.",
            why=f"It {damaged.why}; whatever it said of {need.names} is not known, and older evidence may "
            "contradict it.",
            remedy=f"Remove it (rm {damaged.path}), then run {_command(need.kind)}, which tests anew.",
        )
        return
    newest = _newest(need, evidence)
    if newest is None:
        yield _missing(need)
        return
    outdated = [*_stale(need, newest), *_suspect(need, newest, discovered, evidence)]
    yield from outdated or _verdicts(need, newest)


def _newest(need: _Need, evidence: Evidence) -> Probe | None:
    return _newest_control(evidence) if need.kind == "control" else evidence.newest(need.kind)


def _newest_control(evidence: Evidence) -> Probe | None:
    """The newest word on the path through the host: of the control arm alone, or of a p2p_check."""
    found = [probe for kind in ("control", "p2p") if (probe := evidence.newest(kind)) is not None]
    spoken = [probe for probe in found if probe.control_arm != "unknown"] or found
    return max(spoken, key=lambda probe: probe.finished_at, default=None)


def _command(kind: str) -> str:
    return f"{_DIAGNOSE} --tags {'integrity' if kind == 'integrity' else 'p2p'}"


def _missing(need: _Need) -> Refusal:
    why = {
        "integrity": "A device that copies or computes wrongly answers with garbage, and nothing else would "
        "notice.",
        "control": "Parts of a model talk through the host's memory here, and nobody has tested that path.",
        "p2p": "Parts of a model talk from GPU to GPU, and a path that corrupts words gives every client "
        "garbage.",
    }
    return Refusal(
        where=need.where,
        what=f"There is no evidence of the {PROBE_NAMES[need.kind]} of {need.names}.",
        why=why[need.kind],
        remedy=f"Run {_SITE} without --tags, --skip-tags and --start-at-task: it tests what is missing "
        f"before it plans. Or run {_command(need.kind)}.",
    )


def _stale(need: _Need, newest: Probe) -> Iterator[Refusal]:
    """One refusal for each kind of difference: another boot, another board, another machine."""
    sentences: Mapping[str, str] = {
        "boot": "is from another boot",
        "board": "is of other boards",
        "machine": "is of another state of the machine",
    }
    for kind, what in sentences.items():
        found = [each.sentence for each in newest.differences if each.kind == kind]
        if found:
            yield Refusal(
                where=need.where,
                what=f"The evidence of the {PROBE_NAMES[need.kind]} of {need.names} {what} "
                f"({newest.finished_at}).",
                why=f"{'; '.join(found[:5])}. What a device or a path may be trusted with can change.",
                remedy=f"Run {_SITE} as a whole, which tests anew before it plans, or {_command(need.kind)}.",
            )


def _suspect(need: _Need, newest: Probe, discovered: Discovered, evidence: Evidence) -> Iterator[Refusal]:
    addresses = addresses_of(need.devices, discovered)
    found = evidence.suspicions(newest, addresses)
    if found:
        yield Refusal(
            where=need.where,
            what=f"The evidence of the {PROBE_NAMES[need.kind]} of {need.names} is suspect "
            f"({newest.finished_at}).",
            why=f"Something happened to it since: {'; '.join(found[:5])}",
            remedy=f"Run {_SITE} as a whole, which tests anew before it plans, or {_command(need.kind)}.",
        )


def addresses_of(devices: Iterable[Device], discovered: Discovered) -> list[str]:
    """The PCI addresses of GPUs."""
    uuids = {device.uuid for device in devices}
    return [gpu.pci_address for gpu in discovered.gpus if gpu.uuid in uuids]


def _verdicts(need: _Need, newest: Probe) -> Iterator[Refusal]:
    if need.kind == "integrity":
        for device in need.devices:
            yield from _integrity(need, newest, device)
    elif newest.control_arm != "clean":
        yield _control(need, newest)
    elif need.kind == "p2p":
        yield from _uncovered_pairs(need, newest)
    elif len(newest.devices()) < len(need.devices):
        yield _too_few_shares(need, newest)


def _device_verdict(probe: Probe, device: Device) -> str | None:
    """The integrity of one device. Shares of the processor are all alike: the worst of them counts."""
    if device.kind == "cpu":
        shares = [str(each.get("verdict")) for each in probe.devices()] if probe.on_cpu() else []
        return next((verdict for verdict in shares if verdict != "clean"), shares[0] if shares else None)
    found = (each for each in probe.devices() if each.get("uuid") == device.uuid)
    return next((str(each.get("verdict")) for each in found), None)


def _integrity(need: _Need, newest: Probe, device: Device) -> Iterator[Refusal]:
    verdict = _device_verdict(newest, device)
    services = [service for service in need.services if _uses(service, device)] or list(need.services)
    where = " and ".join(f"{service.where}.devices" for service in services)
    if verdict is None:
        yield Refusal(
            where=where,
            what=f"The integrity test of {newest.finished_at} says nothing of {device.name}.",
            why="It tested other devices; each device needs a word of its own.",
            remedy=f"Run {_command('integrity')}.",
        )
    elif verdict != "clean":
        told = [sentence for sentence in newest.sentences if verdict == "clean" or "clean" not in sentence]
        yield Refusal(
            where=where,
            what=f"The integrity test of {newest.finished_at} says that {device.name} is {verdict}.",
            why=" ".join(told[:3]) or "A device that isn't clean answers with garbage.",
            remedy=f"Move the service to another device. After a cold start run {_command('integrity')}: "
            "wrong again means the board.",
        )


def _uses(service: Service, device: Device) -> bool:
    return device.name in service.devices or (device.uuid or "") in service.devices


def _control(need: _Need, newest: Probe) -> Refusal:
    failed = newest.control_arm == "failed"
    return Refusal(
        where=need.where,
        what=f"The control arm of {newest.finished_at} {'failed' if failed else 'came to no end'} "
        f"for {need.names}.",
        why="It sends the same words through the host's memory. "
        + (
            "Words were wrong even there, so not even the staged path can be trusted."
            if failed
            else "Without its clean word no path can be trusted, not even the staged one."
        ),
        remedy=f"Test the host's memory, read the kernel log, then run {_command('p2p')}. Until then give "
        f"the service one device: devices: [{need.devices[0].name}], tensor_parallel: 1, "
        "pipeline_parallel: 1.",
    )


def _uncovered_pairs(need: _Need, newest: Probe) -> Iterator[Refusal]:
    uuids = [device.uuid or "" for device in need.devices]
    names: Mapping[str, str] = {device.uuid or "": device.name for device in need.devices}
    missing = [
        f"{names[a]} to {names[b]}" for a in uuids for b in uuids if a != b and not newest.pair_verdict(a, b)
    ]
    if missing:
        yield Refusal(
            where=need.where,
            what=f"The p2p_check of {newest.finished_at} says nothing of {', '.join(missing)}.",
            why="A model is split only over a set of devices that was tested as this very set.",
            remedy=f"Run {_command('p2p')}.",
        )


def _too_few_shares(need: _Need, newest: Probe) -> Refusal:
    return Refusal(
        where=need.where,
        what=f"The control arm of {newest.finished_at} tested {len(newest.devices())} shares of the "
        f"processor, and {need.names} are {len(need.devices)}.",
        why="A model is split only over as many devices as were tested together.",
        remedy=f"Run {_SITE} as a whole, which tests them, or {_command('control')} with "
        f"gpu_diag_cpu_devices: {len(need.devices)}.",
    )


def devices_by_probe(needs: Sequence[_Need]) -> dict[str, tuple[Device, ...]]:
    """The devices that each probe has to speak of."""
    found: dict[str, list[Device]] = defaultdict(list)
    for need in needs:
        found[need.kind].extend(need.devices)
    return {kind: tuple(devices) for kind, devices in found.items()}


def needed_devices(desired: Desired, discovered: Discovered) -> dict[str, tuple[Device, ...]]:
    """By probe, the devices that it has to speak of for this declaration."""
    return devices_by_probe(_needs(desired, discovered))
