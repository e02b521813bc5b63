"""Identity of a machine in its present boot: evidence about GPUs counts only while it is the same."""

from __future__ import annotations

from collections.abc import Mapping

Json = dict[str, object]

_MACHINE_KEYS = {
    "boot_id": "the machine was booted again",
    "kernel": "the kernel is another",
    "kernel_command_line": "the kernel command line is another",
    "driver": "the GPU driver is another",
    "bios_version": "the firmware (BIOS) is another",
    "iommu_group_types": "the IOMMU groups are of other types",
    "acs_redirect": "the ACS redirect bits of a port above a GPU are others",
}
_GPU_KEYS = ("uuid", "serial", "pci_address", "vbios")


def identity_of(box: Mapping[str, object]) -> Json:
    """The identity out of what was discovered (``gpu_diag_box``)."""
    gpus = box.get("gpus")
    return {
        **{key: box.get(key) for key in _MACHINE_KEYS},
        "gpus": [{key: gpu.get(key) for key in _GPU_KEYS} for gpu in gpus] if isinstance(gpus, list) else [],
    }


def differences(recorded: Mapping[str, object], present: Mapping[str, object]) -> list[str]:
    """Sentences on what makes a recorded identity another than the present one; none when it is the same.

    A value that one side could not read counts as different: what isn't known isn't proven the same.
    """
    changed = [why for key, why in _MACHINE_KEYS.items() if recorded.get(key) != present.get(key)]
    return changed + _gpu_differences(_gpus(recorded), _gpus(present))


def _gpus(identity: Mapping[str, object]) -> dict[str, Json]:
    gpus = identity.get("gpus")
    found = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return {str(gpu.get("pci_address")): {key: gpu.get(key) for key in _GPU_KEYS} for gpu in found}


def _gpu_differences(recorded: dict[str, Json], present: dict[str, Json]) -> list[str]:
    return [
        *(f"the GPU at {slot} is gone" for slot in recorded if slot not in present),
        *(f"the GPU at {slot} is new" for slot in present if slot not in recorded),
        *(
            f"the GPU at {slot} is another, or has another VBIOS"
            for slot in recorded
            if slot in present and recorded[slot] != present[slot]
        ),
    ]
