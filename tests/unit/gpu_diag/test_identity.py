"""What makes a boot another one, as far as evidence is concerned."""

from __future__ import annotations

import pytest
from gpu_diag.identity import Json, differences, identity_of


def box() -> Json:
    return {
        "boot_id": "one",
        "kernel": "6.8.0-117",
        "kernel_command_line": "quiet",
        "driver": {"version": "595.71.05", "cuda": "13.0"},
        "bios_version": "1.2",
        "iommu_group_types": {"DMA": 3},
        "acs_redirect": {"0000:3a:00.0": ["ReqRedir"]},
        "hostname": "not part of it",
        "gpus": [
            {"index": 0, "uuid": "GPU-0", "serial": None, "pci_address": "0000:3d:00.0", "vbios": "92"},
            {"index": 1, "uuid": "GPU-1", "serial": "11", "pci_address": "0000:63:00.0", "vbios": "92"},
        ],
    }


def test_the_same_box_is_the_same() -> None:
    renamed = {**box(), "hostname": "other", "cpu_count": 4}
    assert differences(identity_of(box()), identity_of(renamed)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"boot_id": "two"}, "the machine was booted again"),
        ({"kernel": "6.8.0-137"}, "the kernel is another"),
        ({"kernel_command_line": "quiet iommu=pt"}, "the kernel command line is another"),
        ({"driver": {"version": "595.71.05", "cuda": "13.1"}}, "the GPU driver is another"),
        ({"bios_version": None}, "the firmware (BIOS) is another"),
        ({"iommu_group_types": {"identity": 3}}, "the IOMMU groups are of other types"),
        (
            {"acs_redirect": {"0000:3a:00.0": []}},
            "the ACS redirect bits of a port above a GPU are others",
        ),
    ],
)
def test_each_part_of_the_machine_counts(change: Json, sentence: str) -> None:
    assert differences(identity_of(box()), identity_of({**box(), **change})) == [sentence]


@pytest.mark.parametrize("key", ["uuid", "serial", "vbios"])
def test_each_part_of_a_gpu_counts(key: str) -> None:
    changed = identity_of(box())
    gpus = changed["gpus"]
    assert isinstance(gpus, list)
    gpus[1][key] = "other"
    assert differences(identity_of(box()), changed) == [
        "the GPU at 0000:63:00.0 is another, or has another VBIOS"
    ]


def test_gpus_that_went_or_came() -> None:
    less = {**box(), "gpus": []}
    assert differences(identity_of(box()), identity_of(less)) == [
        "the GPU at 0000:3d:00.0 is gone",
        "the GPU at 0000:63:00.0 is gone",
    ]
    assert differences(identity_of(less), identity_of(box()))[0] == "the GPU at 0000:3d:00.0 is new"
