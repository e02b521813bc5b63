"""How much memory is free, which services are in the way, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import ansible.module_utils.gpu_diag_room_run as room_run
import ansible.module_utils.gpu_diag_router as router
import pytest
from ansible.module_utils.gpu_diag_memory import FreeMemory, parse_free_memory, short_ones

FRONT = FreeMemory("GPU-front", "0000:3d:00.0", 1 << 30)
BACK = FreeMemory("GPU-back", "0000:63:00.0", 40 << 30)
SERVICES = (
    router.Service("text", "awake", ("GPU-front", "GPU-back")),
    router.Service("ocr", "sleeping", ("GPU-front",)),
    router.Service("embed", "waking", ("GPU-back",)),
)


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("nvidia-smi-595.71.05-v13-three-a800", [81210, 81210, 81210]),
        ("nvidia-smi-525.147.05-v12-geforce-without-serial", [23866]),
        ("nvidia-smi-515.105.01-v11-t4-in-a-virtual-machine", [14650]),
    ],
)
def test_free_memory_of_each_schema(fixtures: Path, name: str, free: list[int]) -> None:
    found = parse_free_memory((fixtures / f"{name}.xml").read_text())
    assert found is not None
    assert [(gpu.free_bytes or 0) // 1024**2 for gpu in found] == free
    assert all(gpu.uuid.startswith("GPU-") and gpu.pci_address for gpu in found)
    assert short_ones(found) == []


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", "<other/>", "<nvidia_smi_log>"])
def test_other_output_is_not_taken_for_its_xml(text: str) -> None:
    assert parse_free_memory(text) is None


def test_memory_that_the_driver_does_not_tell_is_unknown_and_not_short() -> None:
    (gpu,) = parse_free_memory("<nvidia_smi_log><gpu><uuid>GPU-1</uuid></gpu></nvidia_smi_log>") or []
    assert gpu.free_bytes is None and not gpu.is_short
    assert "unknown amount" in gpu.sentence()


def test_only_services_that_use_memory_of_a_short_gpu_are_in_the_way() -> None:
    assert [service.name for service in room_run.in_the_way(SERVICES, [FRONT])] == ["text"]
    assert room_run.in_the_way(SERVICES, []) == []
    (line,) = room_run.shortage_lines([FRONT], SERVICES)
    assert line == (
        "The GPU at 0000:3d:00.0 has 1.0 GiB of free memory, a probe needs 2.0 GiB; "
        "must make room: text (awake)."
    )
    (line,) = room_run.shortage_lines([FRONT], SERVICES[1:])
    assert "none of this instance's services is awake on it" in line


@pytest.mark.parametrize("answer", [None, [], {}, {"services": None}])
def test_an_answer_of_another_form_is_no_status(answer: object) -> None:
    with pytest.raises(router.NoAnswerError, match="not its status"):
        router.parse_status(answer)


def test_no_driver_and_one_that_hangs_or_fails_are_told_apart(tmp_path: Path) -> None:
    admin = router.Admin(tmp_path)
    room, short, _ = room_run.look(admin, [str(tmp_path / "absent")])
    assert (room.lines, short) == (["There is no GPU driver here, so no service must make room."], [])
    failing = tmp_path / "nvidia-smi"
    failing.write_text("#!/bin/sh\necho 'Driver/library version mismatch'; exit 18\n")
    failing.chmod(0o755)
    room, short, _ = room_run.look(admin, [str(failing)])
    assert "isn't known" in room.lines[0] and "version mismatch" in room.lines[0] and short == []


def test_a_box_without_a_router_says_so(tmp_path: Path) -> None:
    with pytest.raises(router.NoAnswerError, match="no router is deployed"):
        router.Admin(tmp_path).status()
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "router.env").write_text("OTHER=1\n")
    with pytest.raises(router.NoAnswerError, match="does not say ROUTER_ADMIN_ADDRESS"):
        router.Admin(tmp_path).status()
