"""Which devices a box has, under which names, and which of them a service gets."""

from __future__ import annotations

from .instance import LABEL_DEVICE_KIND
from .model import Desired, Device, DeviceKind, DeviceName, Discovered, Gpu, Service

DEVICE_KINDS: tuple[DeviceKind, ...] = ("cuda", "cpu")


def device_kind(desired: Desired, discovered: Discovered) -> DeviceKind | None:
    """What the engine image computes on, from its label; None while the image isn't there or says neither.

    An image without the label is taken for a CUDA one: the published vLLM images carry none.
    """
    image = discovered.images.get(desired.image)
    if image is None:
        return None
    label = image.labels.get(LABEL_DEVICE_KIND, "cuda")
    return next((kind for kind in DEVICE_KINDS if kind == label), None)


def gpu_of(name: DeviceName, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a declared name means, or None when there is none such."""
    for gpu in gpus:
        if name.uuid is not None and gpu.uuid == name.uuid:
            return gpu
        if name.pci_address is not None and _short_pci(gpu.pci_address) == _short_pci(name.pci_address):
            return gpu
        if name.index is not None and gpu.index == name.index:
            return gpu
    return None


def _short_pci(address: str) -> str:
    """A PCI address without leading zeros of its domain: tools write 0000:3d:00.0 and 00000000:3D:00.0."""
    parts = address.lower().split(":")
    domain = parts[0] if len(parts) == 3 else "0"
    return ":".join([domain.lstrip("0") or "0", *parts[-2:]])


def known_devices(
    desired: Desired, discovered: Discovered, kind: DeviceKind | None = None
) -> dict[str, Device]:
    """All devices of a kind (or of both) by every name they may be called.

    A GPU is known as gpu<index>, by its UUID and by what people named it; all mean the same key.
    """
    devices: dict[str, Device] = {}
    if kind in ("cuda", None):
        for gpu in discovered.gpus:
            devices[f"gpu{gpu.index}"] = _cuda(f"gpu{gpu.index}", gpu)
            devices[gpu.uuid] = _cuda(f"gpu{gpu.index}", gpu)
    for name in desired.device_names:
        found = gpu_of(name, discovered.gpus)
        if name.cores is not None and kind in ("cpu", None):
            devices[name.name] = Device(name.name, f"cpu:{name.name}", "cpu", cores=name.cores)
        elif found is not None and kind in ("cuda", None):
            devices[name.name] = _cuda(name.name, found)
    return devices


def _cuda(name: str, gpu: Gpu) -> Device:
    return Device(name, gpu.uuid, "cuda", memory_bytes=gpu.memory_bytes, uuid=gpu.uuid, model=gpu.name)


def devices_of(service: Service, known: dict[str, Device]) -> tuple[Device, ...]:
    """The devices a service really gets; names that mean nothing are left out (a rule refuses them)."""
    return tuple(known[name] for name in service.devices if name in known)
