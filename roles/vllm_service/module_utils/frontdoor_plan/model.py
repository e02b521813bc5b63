"""What is wanted, what was found, what will be done, and why not.

*Desired* is declared by people and never discovered; *Discovered* is measured on the box and never typed
in. A *Plan* is where both meet; a *Refusal* says why there is none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from .instance import MODELS_ROOT, Instance
from .router_settings import Secrets

Task = Literal["generate", "embed", "rerank"]
DeviceKind = Literal["cuda", "cpu"]
AllowLevel2 = Literal["auto", "always", "never"]
GpuPath = Literal["staged", "peer"]


@dataclass(frozen=True, order=True)
class Refusal:
    """Why there is no plan: four sentences for the person who has to act."""

    where: str
    what: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Service:
    """One engine as it was declared. Memory in GiB, times in minutes."""

    name: str
    slot: int
    model: str
    path: str
    devices: tuple[str, ...]
    task: Task = "generate"
    aliases: tuple[str, ...] = ()
    memory_fraction: Decimal | None = None
    kv_cache_memory_gib: Decimal | None = None
    max_model_len: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    exclusive: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    quantization: str | None = None
    trust_remote_code: bool = False
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    idle_sleep_minutes: int | None = None
    idle_offload_minutes: int | None = None
    pin: bool = False
    allow_level_2: AllowLevel2 = "auto"
    debug_port: bool = False

    @property
    def where(self) -> str:
        """Where a person finds the declaration of this service."""
        return f"vllm_service_services.{self.name}"


@dataclass(frozen=True)
class DeviceName:
    """A name that a person gave to a device: a GPU by one of three handles, or a set of CPU cores."""

    name: str
    uuid: str | None = None
    pci_address: str | None = None
    index: int | None = None
    cores: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RouterSettings:
    """What the router is started with. Times in the unit of their name."""

    image: str
    public_address: str = "0.0.0.0"
    idle_sleep_minutes: int = 15
    idle_offload_minutes: int = 180
    hold_max_seconds: int = 600
    uid: int = 10810
    gid: int = 10810
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the router."""
    secrets: Secrets = field(default_factory=Secrets)

    @property
    def health_port(self) -> int | None:
        """The TCP port of the listener for a balancer's checks, None without one."""
        address = self.settings.get("ROUTER_HEALTH_ADDRESS")
        return int(address.rpartition(":")[2]) if address else None


@dataclass(frozen=True)
class Desired:
    """All that people declared about one box.

    `fetched_models` are the model folders that the role model_files puts there; all others are there already,
    or nowhere. `unread_devices` are names of devices whose declaration is refused already. `probes` and
    `cpu_shares` are what people want tested beyond what the services need.
    """

    instance: Instance
    image: str
    router: RouterSettings
    services: tuple[Service, ...] = ()
    models_root: str = MODELS_ROOT
    device_names: tuple[DeviceName, ...] = ()
    unread_devices: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_limit: Decimal = Decimal("0.88")
    host_memory_limit: Decimal = Decimal("0.9")
    weights_required: tuple[str, ...] = ("verified", "values_only")
    allow_p2p: bool = False
    probes: tuple[str, ...] = ()
    cpu_shares: int = 0
    cpu_kv_cache_gib: int = 1
    fetched_models: frozenset[str] = frozenset()
    docker_host: str = "unix:///var/run/docker.sock"
    healthy_timeout_seconds: int = 900
    drain_seconds: int = 120
    prove_timeout_seconds: int = 900


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver reports. Memory in bytes."""

    index: int
    uuid: str
    pci_address: str
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Image:
    reference: str
    id: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PathFacts:
    exists: bool
    is_directory: bool
    entries: int


@dataclass(frozen=True)
class PortUser:
    """Who listens on a TCP port."""

    process: str
    pid: int | None = None
    container: str | None = None


@dataclass(frozen=True)
class Route:
    network: ipaddress.IPv4Network
    interface: str


@dataclass(frozen=True)
class DockerNetwork:
    name: str
    subnets: tuple[ipaddress.IPv4Network, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Docker:
    reachable: bool
    error: str | None = None


@dataclass(frozen=True)
class ModelFacts:
    """What a model folder says of its model. `problem` is a sentence where its config can't be read.

    `attention_heads` and `context_tokens` are None where the config doesn't say; `weights_bytes` is the size
    of the files that vLLM would load.
    """

    config: bool
    attention_heads: int | None = None
    context_tokens: int | None = None
    weights_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Discovered:
    """All that was found on one box. `images`, `paths`, `models` and `ports` are keyed by what was asked for.

    `identity` is the machine in its present boot: evidence about devices counts only while it is the same.
    """

    cpu_count: int
    memory_bytes: int
    docker: Docker
    gpus: tuple[Gpu, ...] = ()
    images: Mapping[str, Image | None] = field(default_factory=dict)
    paths: Mapping[str, PathFacts] = field(default_factory=dict)
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    ports: Mapping[int, PortUser | None] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    networks: tuple[DockerNetwork, ...] = ()
    containers: tuple[str, ...] = ()
    is_root: bool = True


@dataclass(frozen=True)
class WeightEvidence:
    """The newest verdict on the files of one model folder, and why it no longer counts, where it doesn't."""

    folder: str
    verdict: str
    finished_at: str
    outdated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """A device that a service can be put on. `key` is the same for all instances of a machine; `model` is
    what the device calls itself (a GPU's name, or cpu)."""

    name: str
    key: str
    kind: DeviceKind
    memory_bytes: int | None = None
    cores: tuple[int, ...] = ()
    uuid: str | None = None
    model: str = "cpu"


@dataclass(frozen=True)
class Figure:
    """A number of bytes, and whether it was measured on this box or is estimated so that it errs on the safe
    side."""

    size: int
    measured: bool


@dataclass(frozen=True)
class Memory:
    """What a service takes: of each of its devices, and of the host's memory.

    `fraction` is its share of each GPU's whole memory while awake (None on CPU devices); `residue` is what
    stays on each GPU while it sleeps; `host` what it takes of the host's memory while it sleeps at level 1
    (on CPU devices: while it is awake).
    """

    fraction: Decimal | None
    residue: Figure
    host: Figure


@dataclass(frozen=True)
class Placement:
    """A service on the devices it really gets, with the idle times that hold for it (minutes).

    `path` is what its devices may use between each other; `boot_id` is the boot whose evidence allowed the
    peer path (None on the staged path, which needs nobody's word). `vouched_for`: whether somebody has read
    all of its weights and found them sound, so that its answers may be the measure of later ones.
    """

    service: Service
    devices: tuple[Device, ...]
    idle_sleep_minutes: int
    idle_offload_minutes: int
    memory: Memory
    path: GpuPath = "staged"
    boot_id: str | None = None
    vouched_for: bool = False

    @property
    def parts(self) -> int:
        """Into how many parts the model is split."""
        return self.service.tensor_parallel * self.service.pipeline_parallel

    @property
    def talks_by_nccl(self) -> bool:
        """Whether parts of the model talk to each other from GPU to GPU."""
        return self.parts > 1 and all(device.uuid is not None for device in self.devices)


@dataclass(frozen=True)
class Plan:
    """What will be rendered. Nothing in it is unproven, unknown or undecided."""

    instance: Instance
    kind: DeviceKind
    engine_image: Image
    router_image: Image
    router: RouterSettings
    environment: Mapping[str, str]
    memory_limit: Decimal
    cpu_kv_cache_gib: int
    devices: tuple[Device, ...]
    placements: tuple[Placement, ...]
    waves: tuple[tuple[str, ...], ...]
    host_memory_bytes: int = 0
    host_memory_limit: Decimal = Decimal("0.9")
    warnings: tuple[str, ...] = ()

    @property
    def public_scheme(self) -> str:
        """How clients begin the front door's address."""
        return "https" if self.router.secrets.has_tls else "http"
