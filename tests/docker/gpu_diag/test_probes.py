"""The probes in the engine's own image: torch on the processor, real models, and models with planted
faults."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

IMAGE = os.environ.get("FRONTDOOR_ENGINE_IMAGE", "vllm-frontdoor/engine-cpu:0.27.1")
MODELS = Path(os.environ.get("FRONTDOOR_MODELS", "/var/lib/vllm-frontdoor/models"))
PACKAGE = Path(__file__).parents[3] / "roles" / "gpu_diag" / "files"
SECONDS = 600


def in_image(
    *arguments: str, mounts: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, output and complaints of Python with the package, in a container of the engine's image."""
    line = ["docker", "run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp:exec"]
    line += [part for volume in (f"{PACKAGE}:/package:ro", *mounts) for part in ("--volume", volume)]
    settings = {"PYTHONPATH": "/package", "PYTHONDONTWRITEBYTECODE": "1", **(variables or {})}
    line += [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    line += ["--entrypoint", "python3", IMAGE, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def gpu_diag(*arguments: str, mounts: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """The same of the command itself."""
    return in_image("-m", "gpu_diag", *arguments, mounts=mounts)


def script(folder: Path, text: str, *arguments: str, **variables: str) -> Any:
    """What a script prints as JSON."""
    (folder / "script.py").write_text(text)
    mounts = (f"{folder}:/script:ro",)
    status, output, complaints = in_image("/script/script.py", *arguments, mounts=mounts, variables=variables)
    assert status == 0, complaints
    return json.loads(output)


def test_integrity_of_the_processor() -> None:
    status, output, complaints = gpu_diag("integrity", "--cpu", "2", "--stress", "0.2", "--json")
    assert status == 0, complaints
    document = json.loads(output)
    assert document["verdict"] == "clean"
    assert [device["verdict"] for device in document["details"]["devices"]] == ["clean", "clean"]


def test_shares_of_the_processor_have_a_control_arm_and_no_path_between_them() -> None:
    status, output, complaints = gpu_diag("p2p", "--cpu", "2", "--json")
    assert status == 0, complaints
    document = json.loads(output)
    assert (document["verdict"], document["class"]) == ("not_applicable", "no_peer_access")
    assert document["details"]["control_words"] > 8_000_000
    assert document["details"]["words"] == 0


@pytest.mark.parametrize("probe", ["p2p", "integrity"])
def test_without_a_gpu_the_tool_says_that_it_could_not_run(probe: str) -> None:
    status, output, complaints = gpu_diag(probe)
    assert (status, output) == (3, "")
    assert "torch sees no GPU" in complaints


TORCH_MACHINE = """
import json, sys
from gpu_diag.devices.torch_devices import TorchDevices, cpu_targets, import_torch
from gpu_diag.p2p.plan import Step
from gpu_diag.p2p.probe import run_step
from gpu_diag.p2p.words import Message

class Forgetful(TorchDevices):
    def move(self, messages, how):
        super().move(messages, how)
        message = messages[0]
        if sys.argv[1] == "zeroed":
            self._arenas[message.destination][message.begin + 7 : message.begin + 9].zero_()
        elif sys.argv[1] == "stray":
            arena = self._arenas[message.destination]
            arena[message.end + 512] = arena[message.begin]

torch = import_torch()
devices = Forgetful(torch, cpu_targets(torch, 2), 8 << 20)
found = {}
for how in ("copy_engine", "store", "staged"):
    message = Message(0x1234, 0, 1, 1000, 4_000_001, 1_000_003)
    result = run_step(devices, Step("one_way", how, (message,)), frozenset())
    (one,) = result.messages
    found[how] = [one.wrong, dict(one.findings.classes), result.strays, dict(result.stray_findings.classes)]
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", [0, {}, 0, {}]),
        ("zeroed", [2, {"zeroed": 2}, 0, {}]),
        ("stray", [0, {}, 1, {"misdirected": 1}]),
    ],
)
def test_words_through_torch_are_judged_by_the_owner(tmp_path: Path, fault: str, expected: list[Any]) -> None:
    found = script(tmp_path, TORCH_MACHINE, fault)
    assert found == dict.fromkeys(("copy_engine", "store", "staged"), expected)


RUNTIME_MACHINE = """
import json, subprocess
from gpu_diag.devices.cuda_library import load_library
from gpu_diag.devices.cuda_runtime import CudaDevices
from gpu_diag.devices.protocol import DeviceLostError, NoDevicesError
from gpu_diag.p2p.plan import Step
from gpu_diag.p2p.probe import run_step
from gpu_diag.p2p.words import Message

subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", "/tmp/cudart.so", "/script/cudart.c"], check=True)
found = {}
try:
    devices = CudaDevices(load_library("/tmp/cudart.so"), 4 << 20)
    found["slots"] = [device.pci_address for device in devices.devices]
    found["untested"] = list(devices.untested())
    for how in (*devices.methods(), "staged"):
        message = Message(0x1234, 0, 1, 1000, 2_000_001, 1_000_003)
        result = run_step(devices, Step("one_way", how, (message,)), frozenset())
        (one,) = result.messages
        found[how] = [one.wrong, one.dropped, one.read_back_wrong, result.strays]
    if "ipc" in devices.methods():
        back = Message(0x1234, 1, 0, 9, 2_500_001, 700_001)
        result = run_step(devices, Step("both_ways", "ipc", (message, back)), frozenset())
        found["ipc both ways"] = [one.wrong for one in result.messages] + [result.strays]
except (DeviceLostError, NoDevicesError) as error:
    found["error"] = str(error)
print(json.dumps(found))
"""
WORDS, WORDS_BACK = 1_000_003, 700_001
CLEAN = [0, 0, None, 0]


def runtime_machine(folder: Path, fault: str) -> dict[str, Any]:
    """What the probes find on the library in C with a fault."""
    shutil.copy(Path(__file__).parent / "cudart.c", folder)
    return dict(script(folder, RUNTIME_MACHINE, CUDART_FAULT=fault))


@pytest.mark.parametrize(
    ("fault", "expected", "expected_of_ipc"),
    [
        ("none", CLEAN, CLEAN),
        ("dropped", [WORDS, WORDS, WORDS, 0], [WORDS, WORDS, WORDS, 0]),
        ("mirror", [WORDS, WORDS, 0, 0], [WORDS, WORDS, 0, 0]),
        # A consumer's own way fails where the driver's copies do not.
        ("ipc_dropped", CLEAN, [WORDS, WORDS, WORDS, 0]),
    ],
)
def test_the_cuda_runtime_is_called_rightly_and_faults_are_seen(
    tmp_path: Path, fault: str, expected: list[Any], expected_of_ipc: list[Any]
) -> None:
    both_ways = [0, 0, 0] if fault == "none" else [WORDS, WORDS_BACK, 0]
    assert runtime_machine(tmp_path, fault) == {
        "slots": ["0000:3d:00.0", "0000:3e:00.0"],
        "untested": [],
        "copy_engine": expected,
        "pull": expected,
        "ipc": expected_of_ipc,
        "staged": CLEAN,
        "ipc both ways": both_ways,
    }


def test_memory_that_no_other_process_may_open_is_said_to_be_untested(tmp_path: Path) -> None:
    found = runtime_machine(tmp_path, "ipc_refused")
    (sentence,) = found["untested"]
    assert "was not tested: cudaIpcGetMemHandle says 801: operation not supported" in sentence
    assert "ipc" not in found and found["pull"] == CLEAN


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("lost", "cudaDeviceSynchronize says 46: the device is gone"),
        ("none_there", "the CUDA runtime sees no GPU: start the container with --gpus all"),
        ("ipc_dies", "the process that copies for GPU 0 died"),
    ],
)
def test_errors_of_the_cuda_runtime_are_sentences(tmp_path: Path, fault: str, sentence: str) -> None:
    assert runtime_machine(tmp_path, fault)["error"] == sentence


def test_the_checks_of_a_device_catch_what_is_planted(tmp_path: Path) -> None:
    assert script(tmp_path, BROKEN_DEVICE) == {
        "good": [],
        "product": ["compute_wrong"] * 3,
        "unstable": ["compute_unstable"] * 3,
        "copy": True,
    }


BROKEN_DEVICE = """
import json, torch
from gpu_diag.integrity.checks import check_copies, check_device, check_matmul

target = torch.device("cpu")
fresh = lambda: torch.Generator().manual_seed(1)
types = ("float32", "bfloat16", "float16")
found = {"good": [f.class_ for f in check_device(torch, target, 1, 0.1)]}
smallest = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
right = torch.Tensor.__matmul__
calls = [0]

def wrong(self, other):
    result = right(self, other)
    if self.dtype != torch.float64:
        result[-1, -1] += 1
    return result

def unstable(self, other):
    result = right(self, other)
    calls[0] += 1
    if self.dtype != torch.float64 and calls[0] % 2:
        result[0, 0] *= 1 + smallest[self.dtype]
    return result

torch.Tensor.__matmul__ = wrong
found["product"] = [f.class_ for name in types for f in check_matmul(torch, target, fresh(), name)]
torch.Tensor.__matmul__ = unstable
found["unstable"] = [f.class_ for name in types for f in check_matmul(torch, target, fresh(), name)]
torch.Tensor.__matmul__ = right
copy = torch.Tensor.copy_

def copy_and_flip(self, source):
    copy(self, source)
    if self.numel() > 1000:
        self[-1] ^= 4
    return self

torch.Tensor.copy_ = copy_and_flip
found["copy"] = {f.class_ for f in check_copies(torch, target, fresh())} == {"copy_corrupt"}
print(json.dumps(found))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the rehearsal's embedding model."""
    return Path(shutil.copytree(MODELS / "all-MiniLM-L6-v2", tmp_path / "model"))


def weights(model: Path) -> tuple[int, dict[str, Any]]:
    status, output, complaints = gpu_diag("weights", "--json", str(model), mounts=(f"{model}:{model}:ro",))
    assert output, complaints
    return status, json.loads(output)


def header_of(content: bytes | bytearray) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), 8 + length


def plant_nan(model: Path) -> str:
    """Not a number in the last element of the last tensor of the last file."""
    path = max(model.rglob("*.safetensors"))
    content = bytearray(path.read_bytes())
    header, _ = header_of(content)
    header.pop("__metadata__", None)
    content[-4:] = b"\0\0\xc0\x7f"
    path.write_bytes(content)
    return max(header, key=lambda name: header[name]["data_offsets"][1])


def flip_a_byte_with_a_known_hash(model: Path) -> None:
    path = max(model.rglob("*.safetensors"))
    content = bytearray(path.read_bytes())
    metadata = model / ".cache" / "huggingface" / "download" / f"{path.relative_to(model)}.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"{'0' * 40}\n{hashlib.sha256(content).hexdigest()}\n1786183200.0\n")
    content[-4] ^= 1
    path.write_bytes(content)


def truncate(model: Path) -> None:
    path = max(model.rglob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])


def drop_a_key_from_the_index(model: Path) -> None:
    path = max(model.glob("*.safetensors"))
    header, _ = header_of(path.read_bytes())
    weight_map = {name: path.name for name in list(header)[1:] if name != "__metadata__"}
    weight_map.pop(max(weight_map))
    path.with_name(f"{path.name}.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("plant", "class_"),
    [
        (plant_nan, "not_finite"),
        (flip_a_byte_with_a_known_hash, "hash_differs"),
        (truncate, "truncated"),
        (drop_a_key_from_the_index, "not_in_index"),
    ],
)
def test_a_model_with_a_planted_fault_fails_for_the_right_reason(
    model: Path, plant: Callable[[Path], str | None], class_: str
) -> None:
    assert weights(model)[1]["verdict"] == "values_only"
    planted = plant(model)
    status, document = weights(model)
    assert (status, document["verdict"], document["class"]) == (2, "failed", class_)
    if planted is not None:
        assert document["details"]["faults"][0]["tensor"] == planted
