"""Turns a plan into files: Compose projects, environments and the registry. Always the same bytes.

Nothing here decides; it writes down what the plan says. A container's definition label covers everything
that its container depends on, so it changes when that service changes, and only then.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import engine
from .device_memory import device_memory
from .document import to_yaml
from .instance import (
    ENGINE_PORT,
    LABEL_DEFINITION,
    LABEL_INSTANCE,
    LABEL_SERVICE,
    LOCKS,
)
from .model import Device, Placement, Plan

REGISTRY_SCHEMA_VERSION = 1
LABEL_ENVIRONMENT = "vllm-frontdoor.environment"
LABEL_DEVICES = "vllm-frontdoor.devices"
LABEL_LAUNCHER = "vllm-frontdoor.launcher"

ENGINES_COMPOSE = "engines/compose.yml"
ROUTER_COMPOSE = "router/compose.yml"
ROUTER_ENVIRONMENT = "router/router.env"
REGISTRY = "registry/registry.json"
DEVICE_MEMORY = "registry/device-memory.json"
LAUNCHER = "launcher/launcher.py"
ADMIN_TOKEN = "secrets/admin-token"
LAUNCHER_TOKENS = "secrets/launchers"

_LOGGING = {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}}
_STOP_GRACE_PERIOD = "60s"
_RAW_ENVIRONMENT_VALUE = re.compile(r"[A-Za-z0-9_./:,@%+=-]*")


@dataclass(frozen=True)
class ComposeProject:
    """One Compose project: its name, its file below the root, and the same document as data."""

    name: str
    file: str
    definition: Mapping[str, Any]


@dataclass(frozen=True)
class Rendering:
    """All files of an instance, by path below its root, and the Compose projects among them."""

    files: Mapping[str, bytes]
    engines: ComposeProject
    router: ComposeProject


def render(plan: Plan, launcher: bytes) -> Rendering:
    """Everything that a plan puts on the box; `launcher` is the content of the launcher's file."""
    environments = {
        placement.service.name: _environment_file(engine.environment(placement, plan))
        for placement in plan.placements
    }
    environment_of_router = _environment_file(router_environment(plan))
    engines = ComposeProject(
        plan.instance.engines_project,
        ENGINES_COMPOSE,
        _engines_document(plan, environments, _sha256(launcher)),
    )
    router = ComposeProject(
        plan.instance.router_project, ROUTER_COMPOSE, _router_document(plan, environment_of_router)
    )
    files = {
        ENGINES_COMPOSE: _compose_file(
            engines, "The engines", "vllm_service_services and vllm_service_devices"
        ),
        **{f"engines/{name}.env": content for name, content in environments.items()},
        ROUTER_COMPOSE: _compose_file(router, "The router", "the variables router_*"),
        ROUTER_ENVIRONMENT: environment_of_router,
        **plan.router.secrets.files(),
        REGISTRY: registry(plan, engines.definition),
        DEVICE_MEMORY: device_memory(plan),
        LAUNCHER: launcher,
    }
    return Rendering(files=files, engines=engines, router=router)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def definition_of(document: Mapping[str, Any]) -> str:
    """The sha256 of a definition's canonical JSON, without its own label."""
    labels = {name: value for name, value in document["labels"].items() if name != LABEL_DEFINITION}
    canonical = json.dumps({**document, "labels": labels}, sort_keys=True, separators=(",", ":"))
    return _sha256(canonical.encode("utf-8"))


def _labelled(document: Mapping[str, Any]) -> dict[str, Any]:
    labels = {**document["labels"], LABEL_DEFINITION: definition_of(document)}
    return {**document, "labels": labels}


def _compose_file(project: ComposeProject, what: str, where: str) -> bytes:
    header = [
        f"{what} of this box, written by vllm-frontdoor. What is changed here, the next run puts back.",
        f"To change something, edit {where} in the inventory's group_vars",
        "and run site.yml.",
    ]
    return to_yaml(project.definition, header).encode("utf-8")


def _environment_file(environment: Mapping[str, str]) -> bytes:
    """NAME=value lines as Compose reads them: nothing is substituted, nothing is cut off."""
    lines = [f"{name}={_environment_value(value)}\n" for name, value in sorted(environment.items())]
    return "".join(lines).encode("utf-8")


def _environment_value(value: str) -> str:
    if _RAW_ENVIRONMENT_VALUE.fullmatch(value):
        return value
    if "'" not in value and not value.endswith("\\"):
        return f"'{value}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _literal(text: str) -> str:
    """A text that Compose does not substitute variables in."""
    return text.replace("$", "$$")


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": _literal(source),
        "target": _literal(target),
        "read_only": read_only,
        "bind": {"create_host_path": False},
    }


# ------------------------------------------------------------------------------------------------ engines


def _engines_document(plan: Plan, environments: Mapping[str, bytes], launcher: str) -> dict[str, Any]:
    placements = {placement.service.name: placement for placement in plan.placements}
    return {
        "name": plan.instance.engines_project,
        "services": {
            name: _engine(plan, placement, _sha256(environments[name]), launcher)
            for name, placement in placements.items()
        },
        "networks": {name: _network(plan, placement) for name, placement in placements.items()},
    }


def _engine(plan: Plan, placement: Placement, environment: str, launcher: str) -> dict[str, Any]:
    service = placement.service
    address = str(plan.instance.engine_address(service.slot))
    return _labelled(
        {
            "container_name": plan.instance.container(service.name),
            "image": plan.engine_image.id,
            "pull_policy": "never",
            "entrypoint": [_literal(part) for part in engine.launcher_entrypoint(placement)],
            "command": [_literal(part) for part in engine.command(placement, plan.kind)],
            "env_file": [f"{service.name}.env"],
            **_devices(placement.devices),
            # The parts of a model talk through shared memory.
            "shm_size": f"{placement.parts}g",
            "volumes": [
                _bind(service.path, engine.model_mount(service), read_only=True),
                _bind(f"{plan.instance.root}/launcher", "/launcher", read_only=True),
                _bind(LOCKS, "/locks", read_only=False),
                _bind(plan.instance.clearance, "/clearance", read_only=True),
                # A token of its own: an engine must not be able to order another one's restart.
                _bind(
                    f"{plan.instance.root}/{LAUNCHER_TOKENS}/{service.name}",
                    "/launcher-token",
                    read_only=True,
                ),
            ],
            "networks": {service.name: {"ipv4_address": address}},
            **_debug_port(plan, placement),
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "restart": "unless-stopped",
            "stop_grace_period": _STOP_GRACE_PERIOD,
            "healthcheck": {
                "test": [
                    *("CMD", "python3", "/launcher/launcher.py", "probe"),
                    f"http://127.0.0.1:{ENGINE_PORT}/health",
                ],
                "interval": "5s",
                "timeout": "10s",
                "retries": 3,
                # A large model loads for minutes; how long a deployment waits is its own business.
                "start_period": "1800s",
            },
            "logging": _LOGGING,
            "labels": {
                LABEL_INSTANCE: plan.instance.name,
                LABEL_SERVICE: service.name,
                LABEL_DEVICES: ",".join(sorted(device.key for device in placement.devices)),
                LABEL_ENVIRONMENT: environment,
                LABEL_LAUNCHER: launcher,
            },
        }
    )


def _devices(devices: tuple[Device, ...]) -> dict[str, Any]:
    """What the container may use: GPUs by UUID (an index moves when a board is lost), or a set of cores."""
    uuids = [device.uuid for device in devices if device.uuid is not None]
    if uuids:
        gpus = {"driver": "nvidia", "device_ids": uuids, "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [gpus]}}}}
    return {"cpuset": ",".join(str(core) for device in devices for core in device.cores)}


def _debug_port(plan: Plan, placement: Placement) -> dict[str, Any]:
    if not placement.service.debug_port:
        return {}
    port = plan.instance.debug_port(placement.service.slot)
    return {"ports": [f"127.0.0.1:{port}:{ENGINE_PORT}"]}


def _network(plan: Plan, placement: Placement) -> dict[str, Any]:
    """A network for one engine. Without a debug port nothing leaves it: the host alone reaches in."""
    service = placement.service
    subnet = {
        "subnet": str(plan.instance.subnet(service.slot)),
        "gateway": str(plan.instance.gateway(service.slot)),
    }
    return _labelled(
        {
            "name": plan.instance.network_name(service.name),
            "driver": "bridge",
            "internal": not service.debug_port,
            "ipam": {"config": [subnet]},
            "labels": {LABEL_INSTANCE: plan.instance.name, LABEL_SERVICE: service.name},
        }
    )


# ------------------------------------------------------------------------------------------------- router


def _router_address(plan: Plan) -> str:
    address = plan.router.public_address
    return f"[{address}]" if ":" in address else address


def admin_url(plan: Plan) -> str:
    """Where the router's admin listener answers on the box itself."""
    return f"http://127.0.0.1:{plan.instance.admin_port}"


def router_environment(plan: Plan) -> dict[str, str]:
    """The variables that the router is started with; no secret is among them."""
    return {
        "FRONTDOOR_ADMIN_TOKEN_FILE": "/secrets/admin-token",
        "FRONTDOOR_EVIDENCE": "/evidence",
        "FRONTDOOR_REGISTRY": "/registry/registry.json",
        "FRONTDOOR_STATE": "/state",
        "IDLE_OFFLOAD_MIN": str(plan.router.idle_offload_minutes),
        "IDLE_SLEEP_MIN": str(plan.router.idle_sleep_minutes),
        "ROUTER_ADMIN_ADDRESS": f"127.0.0.1:{plan.instance.admin_port}",
        "ROUTER_HOLD_MAX": str(plan.router.hold_max_seconds),
        "ROUTER_PUBLIC_ADDRESS": f"{_router_address(plan)}:{plan.instance.public_port}",
        **plan.router.settings,
        **plan.router.secrets.environment(),
    }


def _router_health_url(plan: Plan) -> str:
    local = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    address = _router_address(plan)
    return f"{plan.public_scheme}://{local.get(address, address)}:{plan.instance.public_port}/health"


def _router_document(plan: Plan, environment: bytes) -> dict[str, Any]:
    instance = plan.instance
    # It asks whether the router answers, and not by which name its certificate knows it.
    context = ", context=ssl._create_unverified_context()" if plan.router.secrets.has_tls else ""
    ask = f"urllib.request.urlopen('{_router_health_url(plan)}', timeout=4{context})"
    probe = f"import ssl, urllib.request; {ask}"
    router = {
        "container_name": instance.router_container,
        "image": plan.router_image.id,
        "pull_policy": "never",
        "entrypoint": ["python3", "-m", "wake_router"],
        "command": [],
        "env_file": ["router.env"],
        "network_mode": "host",
        "user": f"{plan.router.uid}:{plan.router.gid}",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "volumes": [
            _bind(f"{instance.root}/registry", "/registry", read_only=True),
            _bind(f"{instance.state}/router", "/state", read_only=False),
            _bind(f"{instance.root}/secrets", "/secrets", read_only=True),
            _bind(instance.evidence, "/evidence", read_only=True),
        ],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "unless-stopped",
        "stop_grace_period": _STOP_GRACE_PERIOD,
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "5s",
            "timeout": "10s",
            "retries": 3,
            "start_period": "30s",
        },
        "logging": _LOGGING,
        "labels": {
            LABEL_INSTANCE: instance.name,
            LABEL_SERVICE: "router",
            LABEL_ENVIRONMENT: _sha256(environment),
        },
    }
    return {"name": instance.router_project, "services": {"router": _labelled(router)}}


# ----------------------------------------------------------------------------------------------- registry


def registry(plan: Plan, engines: Mapping[str, Any]) -> bytes:
    """What the router needs to know of each service, in the schema that the router owns."""
    services = [
        _registered(plan, placement, engines["services"][placement.service.name])
        for placement in plan.placements
    ]
    document = {
        "schema_version": REGISTRY_SCHEMA_VERSION,
        "instance": plan.instance.name,
        "services": services,
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _registered(plan: Plan, placement: Placement, definition: Mapping[str, Any]) -> dict[str, Any]:
    service = placement.service
    return {
        "name": service.name,
        "model": service.model,
        "aliases": _further_names(placement),
        "task": service.task,
        "base_url": plan.instance.base_url(service.slot),
        "launcher_url": plan.instance.launcher_url(service.slot),
        "devices": sorted(device.key for device in placement.devices),
        "definition": definition["labels"][LABEL_DEFINITION],
        "idle_sleep_seconds": placement.idle_sleep_minutes * 60,
        "idle_offload_seconds": placement.idle_offload_minutes * 60,
        "pin": service.pin,
        "allow_level_2": service.allow_level_2,
        "may_record_canary": placement.vouched_for,
    }


def _further_names(placement: Placement) -> list[str]:
    """The aliases without those that only repeat the service's name, its model or one another."""
    known = {placement.service.name.casefold(), placement.service.model.casefold()}
    found: list[str] = []
    for alias in placement.service.aliases:
        if alias.casefold() not in known:
            known.add(alias.casefold())
            found.append(alias)
    return found
