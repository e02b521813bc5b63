"""The engine that runs, as Docker describes its container: what the figures are measured on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LABEL_INSTANCE = "vllm-frontdoor.instance"
LABEL_SERVICE = "vllm-frontdoor.service"
LABEL_DEVICES = "vllm-frontdoor.devices"
_MODELS = "/models/"
_GIB = 2**30


class UnknownEngineError(ValueError):
    """A container isn't an engine as this version deploys it; the message is a sentence."""


@dataclass(frozen=True)
class Engine:
    """One engine's container. `pid` is its first process; `kv_cache_bytes` of all parts, on CPU devices
    only."""

    service: str
    pid: int
    model_folder: str
    image_id: str
    devices: tuple[str, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_cache_bytes: int = 0

    @property
    def on_cpu(self) -> bool:
        """Whether it runs on CPU devices, which have no memory of their own."""
        return all(device.startswith("cpu:") for device in self.devices)


def engine_of(document: Mapping[str, Any]) -> Engine:
    """The engine in an answer of `docker container inspect`. Raises UnknownEngineError."""
    config = document.get("Config") or {}
    labels = config.get("Labels") or {}
    name = str(labels.get(LABEL_SERVICE) or document.get("Name"))
    folders = [
        str(mount["Source"])
        for mount in document.get("Mounts") or ()
        if str(mount.get("Destination", "")).startswith(_MODELS)
    ]
    pid = int((document.get("State") or {}).get("Pid") or 0)
    devices = tuple(each for each in str(labels.get(LABEL_DEVICES) or "").split(",") if each)
    if not pid:
        raise UnknownEngineError(f"the container of {name} is not running")
    if len(folders) != 1 or not devices:
        raise UnknownEngineError(f"the container of {name} is of another version; deploy again")
    command = [str(word) for word in config.get("Cmd") or ()]
    tensor, pipeline = (
        _number(command, "--tensor-parallel-size"),
        _number(command, "--pipeline-parallel-size"),
    )
    cache = _environment(config.get("Env") or ()).get("VLLM_CPU_KVCACHE_SPACE", "0")
    return Engine(
        service=name,
        pid=pid,
        model_folder=folders[0],
        image_id=str(document.get("Image") or ""),
        devices=devices,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        kv_cache_bytes=tensor * pipeline * int(cache) * _GIB if cache.isdecimal() else 0,
    )


def _number(command: Sequence[str], flag: str) -> int:
    for word, following in pairwise(command):
        if word == flag and following.isdecimal():
            return int(following)
    return 1


def _environment(entries: Sequence[str]) -> dict[str, str]:
    pairs = (str(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def device_name(engine: Engine, gpus: Mapping[str, str]) -> str:
    """What the engine's devices call themselves, as the plan compares it; `gpus` are names by UUID.

    Raises UnknownEngineError where they aren't of one kind, or aren't there.
    """
    if engine.on_cpu:
        return "cpu"
    missing = [device for device in engine.devices if device not in gpus]
    if missing:
        raise UnknownEngineError(
            f"nvidia-smi doesn't list the devices {', '.join(missing)} of {engine.service}"
        )
    names = {gpus[device] for device in engine.devices}
    if len(names) > 1:
        raise UnknownEngineError(
            f"{engine.service} is split over different GPUs ({', '.join(sorted(names))}), and the plan reads "
            "figures of one kind only"
        )
    return names.pop()
