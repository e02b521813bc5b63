"""The command line and the environment of an engine, and what of them nobody else may set.

Flags and variables are those of vLLM 0.27.1 to 0.32.0. What the plan sets, the plan owns: a second setting
by hand would win or lose by chance, so rules refuse it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from decimal import Decimal

from .instance import ENGINE_PORT, LAUNCHER_PORT
from .model import DeviceKind, Placement, Plan, Service

STAGED_PATH_ENVIRONMENT: Mapping[str, str] = {
    # Multicast through the NVLink switches is not switched off with the rest (NCCL 2.17 and newer).
    "NCCL_NVLS_ENABLE": "0",
    # The digit: NCCL parses an integer and ignores "true" without a word.
    "NCCL_P2P_DISABLE": "1",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
"""GPU to GPU only through host memory. Together with --disable-custom-all-reduce."""

TRANSPORT_LOG_ENVIRONMENT: Mapping[str, str] = {
    "NCCL_DEBUG": "INFO",
    # All lines that name a transport belong to INIT (NCCL 2.4 to 2.30); the others would fill the log.
    "NCCL_DEBUG_SUBSYS": "INIT,ENV",
}
"""What has NCCL write into the log which way it takes between GPUs; who sets more by hand gets more."""

_KEPT_ON_THE_PEER_PATH = ("NCCL_NVLS_ENABLE",)
"""Of the staged path's settings: what people may switch off beside a peer path that is earned."""

_ALWAYS: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

_CPU_ONLY = ("OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")

OWNED_ENVIRONMENT: Mapping[str, str] = {
    **{
        name: f"the plan sets it to {value} wherever the peer path is not earned"
        for name, value in STAGED_PATH_ENVIRONMENT.items()
    },
    **{name: f"the plan sets it to {value} for every service" for name, value in _ALWAYS.items()},
    **dict.fromkeys(_CPU_ONLY, "the plan derives it from the service's device"),
    "VLLM_CPU_KVCACHE_SPACE": "kv_cache_memory_gib sets it",
    "CUDA_VISIBLE_DEVICES": "devices says where a service runs; the container sees nothing else",
    "NVIDIA_VISIBLE_DEVICES": "devices says where a service runs; the container sees nothing else",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "beyond its own context a model answers nonsense; max_model_len sets it",
    "VLLM_API_KEY": "clients show their keys to the router; engines are reached by nobody else",
    "VLLM_HOST_IP": "the plan gives every engine its address",
    "VLLM_PORT": "the plan gives every engine its port",
}
"""Environment variables that the plan owns, and what to use instead."""

OWNED_FLAGS: Mapping[str, str] = {
    "--host": "the plan gives every engine its address",
    "--port": "the plan gives every engine its port",
    "--uds": "the router reaches engines over TCP",
    "--model": "use model and path",
    "--served-model-name": "use model and aliases",
    "--tensor-parallel-size": "use tensor_parallel",
    "-tp": "use tensor_parallel",
    "--pipeline-parallel-size": "use pipeline_parallel",
    "-pp": "use pipeline_parallel",
    "--data-parallel-size": "an engine uses the devices that the plan gives it",
    "-dp": "an engine uses the devices that the plan gives it",
    "--nnodes": "an engine runs on one machine",
    "--node-rank": "an engine runs on one machine",
    "--enable-sleep-mode": "the plan sets it wherever it works",
    "--disable-custom-all-reduce": "the plan sets it wherever the peer path is not earned",
    "--distributed-executor-backend": "the plan sets it for split models",
    "--gpu-memory-utilization": "use memory_fraction",
    "--kv-cache-memory-bytes": "use kv_cache_memory_gib",
    "--max-model-len": "use max_model_len",
    "--quantization": "use quantization",
    "-q": "use quantization",
    "--trust-remote-code": "use trust_remote_code",
    "--enable-auto-tool-choice": "use tool_call_parser",
    "--tool-call-parser": "use tool_call_parser",
    "--reasoning-parser": "use reasoning_parser",
    "--runner": "use task",
    "--convert": "use task",
    "--task": "use task",
    "--api-key": "clients show their keys to the router; engines are reached by nobody else",
    "--ssl-keyfile": "the router reaches engines over HTTP in a network of their own",
    "--ssl-certfile": "the router reaches engines over HTTP in a network of their own",
    "--root-path": "the router asks for paths from the root",
    "--config": "a file could set anything; write its lines as settings and extra_args",
    "--headless": "an engine has an API server",
    "--disable-access-log-for-endpoints": "the plan sets it for every service",
}
"""Flags that the plan owns, and what to use instead."""

CLEARANCE_IN_CONTAINER = "/clearance/clearance.json"
_QUIET_ENDPOINTS = "/health,/metrics,/is_sleeping"
_TASK_FLAGS: Mapping[str, tuple[str, ...]] = {
    "generate": (),
    "embed": ("--runner", "pooling", "--convert", "embed"),
    "rerank": ("--runner", "pooling", "--convert", "classify"),
}


def model_mount(service: Service) -> str:
    """Where the model folder is seen inside the container."""
    return f"/models/{posixpath.basename(service.path)}"


def launcher_entrypoint(placement: Placement) -> list[str]:
    """The container's first process: the launcher, which starts the engine's command as its child.

    A service on the peer path carries the boot whose evidence allowed it: in any other boot the launcher
    imposes the staged path.
    """
    keys = sorted(device.key for device in placement.devices)
    return [
        "python3",
        "/launcher/launcher.py",
        "run",
        "--service",
        placement.service.name,
        *(part for key in keys for part in ("--device", key)),
        "--locks",
        "/locks",
        "--clearance",
        CLEARANCE_IN_CONTAINER,
        "--model",
        model_mount(placement.service),
        *(("--visible-gpus",) if any(device.uuid for device in placement.devices) else ()),
        *_optional("--peer-path-boot", placement.boot_id),
        "--health",
        f"http://127.0.0.1:{ENGINE_PORT}/health",
        "--state-port",
        str(LAUNCHER_PORT),
        "--token-file",
        "/launcher-token/token",
        "--",
    ]


def command(placement: Placement, kind: DeviceKind) -> list[str]:
    """The engine's command line. The vllm command itself is missing in CPU builds; the module never is."""
    service = placement.service
    return [*("python3", "-m", "vllm.entrypoints.openai.api_server"), *arguments(service, placement, kind)]


def arguments(service: Service, placement: Placement, kind: DeviceKind) -> list[str]:
    """The arguments of the engine's server, as its own parser gets them."""
    return [
        *("--host", "0.0.0.0", "--port", str(ENGINE_PORT)),
        *("--model", model_mount(service), "--served-model-name", service.model),
        *_TASK_FLAGS[service.task],
        *_kind_flags(placement, kind),
        *_parallel_flags(service),
        *(("--disable-custom-all-reduce",) if placement.path == "staged" else ()),
        *_optional("--max-model-len", service.max_model_len),
        *_optional("--quantization", service.quantization),
        *_optional("--reasoning-parser", service.reasoning_parser),
        *(("--enable-auto-tool-choice",) if service.tool_call_parser else ()),
        *_optional("--tool-call-parser", service.tool_call_parser),
        *(("--trust-remote-code",) if service.trust_remote_code else ()),
        *("--disable-access-log-for-endpoints", _QUIET_ENDPOINTS),
        *service.extra_args,
    ]


def _parallel_flags(service: Service) -> list[str]:
    tensor, pipeline = service.tensor_parallel, service.pipeline_parallel
    if tensor * pipeline == 1:
        return []
    return [
        *_optional("--tensor-parallel-size", tensor if tensor > 1 else None),
        *_optional("--pipeline-parallel-size", pipeline if pipeline > 1 else None),
        # All parts are on this machine: processes, and no cluster that would have to be there.
        *("--distributed-executor-backend", "mp"),
    ]


def _kind_flags(placement: Placement, kind: DeviceKind) -> list[str]:
    if kind == "cpu":
        # --enable-sleep-mode refuses to start there, and the routes answer without it.
        return ["--enforce-eager"]
    cache = placement.service.kv_cache_memory_gib
    return [
        "--enable-sleep-mode",
        *_optional("--gpu-memory-utilization", placement.memory.fraction),
        *_optional("--kv-cache-memory-bytes", None if cache is None else int(cache * 2**30)),
    ]


def _optional(flag: str, value: str | int | Decimal | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (flag, format(value, "f") if isinstance(value, Decimal) else str(value))


def environment(placement: Placement, plan: Plan) -> dict[str, str]:
    """The engine's environment: what people set, and over it what the plan owns."""
    given = {**plan.environment, **placement.service.environment}
    if placement.path == "peer":
        # What group_vars says for every box holds where nothing better is proven; here it is.
        dropped = STAGED_PATH_ENVIRONMENT.keys() - set(_KEPT_ON_THE_PEER_PATH)
        given = {name: value for name, value in given.items() if name not in dropped}
    return {
        **(TRANSPORT_LOG_ENVIRONMENT if placement.talks_by_nccl else {}),
        **given,
        **_ALWAYS,
        **(STAGED_PATH_ENVIRONMENT if placement.path == "staged" else {}),
        **(_cpu_environment(placement, plan) if plan.kind == "cpu" else {}),
    }


def _cpu_environment(placement: Placement, plan: Plan) -> dict[str, str]:
    cache = placement.service.kv_cache_memory_gib
    cores = [core for device in placement.devices for core in device.cores]
    return {
        # Each part of the model is a process of its own.
        "OMP_NUM_THREADS": str(max(1, len(cores) // placement.parts)),
        # Log-probabilities are compiled at the first request for them, against headers of Python that the
        # image doesn't have: that ends the engine's core (vLLM 0.27.1 and 0.32.0).
        "TORCHDYNAMO_DISABLE": "1",
        # The container's cpuset binds already; vLLM's own binding would count cores that it doesn't have.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(plan.cpu_kv_cache_gib if cache is None else int(cache)),
    }
