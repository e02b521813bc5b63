"""Devices: they exist, they are of the image's kind, and exclusive means exclusive."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ..devices import device_kind, devices_of, gpu_of, known_devices
from ..instance import LABEL_DEVICE_KIND
from ..model import Desired, DeviceName, Discovered, Refusal, Service
from ..spelling import nearest

_GPU_NAME = re.compile(r"gpu([0-9]+)")


def check(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that devices give; while the image isn't there, devices of both kinds are known."""
    return [
        *_image_kind(desired, discovered),
        *(refusal for name in desired.device_names for refusal in _declared(name, discovered)),
        *_shared_cores(desired),
        *(refusal for service in desired.services for refusal in _of_service(service, desired, discovered)),
        *_exclusive(desired, discovered),
    ]


def _image_kind(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    image = discovered.images.get(desired.image)
    if image is not None and device_kind(desired, discovered) is None:
        yield Refusal(
            where="vllm_service_image",
            what=f"The engine image {desired.image} has the label {LABEL_DEVICE_KIND}="
            f"{image.labels[LABEL_DEVICE_KIND]}.",
            why="Engines run on cuda or cpu devices.",
            remedy=f"Use an image whose label {LABEL_DEVICE_KIND} is cuda or cpu, or that has none (cuda).",
        )


def _declared(name: DeviceName, discovered: Discovered) -> Iterator[Refusal]:
    where = f"vllm_service_devices.{name.name}"
    if _GPU_NAME.fullmatch(name.name) or name.name.startswith("GPU-"):
        yield Refusal(
            where=where,
            what=f"A device can't be named {name.name}.",
            why="GPUs have the names gpu0, gpu1 and so on by their index already.",
            remedy="Choose another name; the built-in ones work without being declared.",
        )
    if name.cores is not None and name.cores[-1] >= discovered.cpu_count:
        yield Refusal(
            where=f"{where}.cores",
            what=f"The device {name.name} names core {name.cores[-1]}, and the box has no such core.",
            why=f"It has {discovered.cpu_count} cores, numbered 0 to {discovered.cpu_count - 1}.",
            remedy="Name only cores that are there.",
        )
    if name.cores is None and gpu_of(name, discovered.gpus) is None:
        yield Refusal(
            where=where,
            what=f"The device {name.name} is not on this box ({_handle(name)}).",
            why=f"{_inventory(discovered)}",
            remedy="Name a GPU that nvidia-smi -L lists on the box, by uuid, pci_address or index.",
        )


def _handle(name: DeviceName) -> str:
    if name.uuid is not None:
        return f"uuid {name.uuid}"
    return f"pci_address {name.pci_address}" if name.pci_address is not None else f"index {name.index}"


def _inventory(discovered: Discovered) -> str:
    if not discovered.gpus:
        return "The driver reports no GPU."
    listed = ", ".join(f"gpu{gpu.index} ({gpu.pci_address}, {gpu.uuid})" for gpu in discovered.gpus)
    return f"The driver reports {listed}."


def _shared_cores(desired: Desired) -> Iterator[Refusal]:
    users: dict[int, list[str]] = defaultdict(list)
    for name in desired.device_names:
        for core in name.cores or ():
            users[core].append(name.name)
    shared = {tuple(names) for names in users.values() if len(names) > 1}
    for names in sorted(shared):
        cores = ", ".join(str(core) for core, found in sorted(users.items()) if tuple(found) == names)
        yield Refusal(
            where=" and ".join(f"vllm_service_devices.{name}.cores" for name in names),
            what=f"The devices {', '.join(names)} share core {cores}.",
            why="Devices are told apart so that their engines don't disturb each other.",
            remedy="Give each core to one device; services that may share go on the same device.",
        )


def _of_service(service: Service, desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    where = f"{service.where}.devices"
    kind = device_kind(desired, discovered)
    known = known_devices(desired, discovered, kind)
    of_any_kind = known_devices(desired, discovered)
    declared = {name.name for name in desired.device_names} | desired.unread_devices
    for name in service.devices:
        if name in known:
            continue
        if name in of_any_kind:
            yield Refusal(
                where=where,
                what=f"{service.name} wants {name}, a {of_any_kind[name].kind} device.",
                why=f"The engine image {desired.image} runs on {kind} devices.",
                remedy=f"Name a {kind} device, or use an image for {of_any_kind[name].kind}.",
            )
        elif name not in declared:  # a declared one that isn't there is refused where it is declared
            yield _absent(service, name, sorted(known), discovered)
    if not service.devices:
        yield Refusal(
            where=where,
            what=f"{service.name} has no device.",
            why="A service has to know where it runs.",
            remedy="Name a device: devices: [gpu0].",
        )
    keys = [device.key for device in devices_of(service, known)]
    if len(set(keys)) < len(keys):
        yield Refusal(
            where=where,
            what=f"{service.name} names the same device twice.",
            why=f"{', '.join(service.devices)} are {len(set(keys))} device(s) in truth.",
            remedy="Name each device once.",
        )


def _absent(service: Service, name: str, known: list[str], discovered: Discovered) -> Refusal:
    near = _meant(name, known)
    listed = [device for device in known if not device.startswith("GPU-")]
    if listed:
        remedy = f"Did you mean {near}?" if near else f"Name one of: {', '.join(listed)}."
    elif _GPU_NAME.fullmatch(name):
        remedy = "See that nvidia-smi -L lists the GPU on the box (driver loaded? GPU fallen off the bus?)."
    else:
        remedy = f'Declare it: vllm_service_devices: {{{name}: {{cores: "0"}}}}.'
    return Refusal(
        where=f"{service.where}.devices",
        what=f"{service.name} wants the device {name}, and there is none such.",
        why=f"{_inventory(discovered)} Known names: {', '.join(listed) or 'none'}.",
        remedy=remedy,
    )


def _meant(name: str, known: list[str]) -> str | None:
    """The device that a slip of the pen may stand for; with another number it would be another GPU."""
    same = next((device for device in known if device.lower() == name.lower()), None)
    gpus = {device: match[1] for device in known if (match := _GPU_NAME.fullmatch(device))}
    number = "".join(character for character in name if character.isdigit())
    return same or nearest(name, [device for device in known if gpus.get(device, number) == number])


def _exclusive(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    known = known_devices(desired, discovered, device_kind(desired, discovered))
    users: dict[str, list[Service]] = defaultdict(list)
    names = {device.key: device.name for device in reversed(known.values())}
    for service in desired.services:
        for key in sorted({device.key for device in devices_of(service, known)}):
            users[key].append(service)
    for key, services in sorted(users.items()):
        exclusive = [service.name for service in services if service.exclusive]
        if exclusive and len(services) > 1:
            yield Refusal(
                where=f"vllm_service_services.{exclusive[0]}.exclusive",
                what=f"{exclusive[0]} wants {names[key]} for itself, and "
                f"{', '.join(service.name for service in services if service.name != exclusive[0])} "
                "is put there too.",
                why="An exclusive service shares its devices with nobody.",
                remedy=f"Move one of them to another device, or set exclusive: false on {exclusive[0]}.",
            )
