"""What the converge module is asked to bring about: one Compose project with its files and folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .instance import LOCKS
from .model import Desired, Plan
from .render import (
    ADMIN_TOKEN,
    DEVICE_MEMORY,
    LAUNCHER,
    LAUNCHER_TOKENS,
    REGISTRY,
    ROUTER_COMPOSE,
    ROUTER_ENVIRONMENT,
    ComposeProject,
    Rendering,
    admin_url,
    router_environment,
)
from .rules.arguments import commands

_ROOT_USER = "0"
_LOG_LINES = 30
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class Earlier:
    """An earlier release as it would be deployed today; what fails goes back to it."""

    name: str
    rendering: Rendering
    plan: Plan


def engine_question(plan: Plan, desired: Desired, script: str) -> dict[str, Any]:
    """Parameters for asking the engine image's own parser; `script` is what asks it in there."""
    return {
        **_question(plan, desired, "arguments"),
        "image": plan.engine_image.id,
        "program": ["-c", script],
        "question": {"commands": commands(plan)},
    }


def router_question(plan: Plan, rendering: Rendering, desired: Desired) -> dict[str, Any]:
    """Parameters for asking the router's image whether it would start with its settings."""
    read = [REGISTRY, *(path for path in rendering.files if _is_secret(path))]
    return {
        **_question(plan, desired, "settings"),
        "image": plan.router_image.id,
        "program": ["-m", "wake_router", "check"],
        "question": {"environment": router_environment(plan)},
        "files": {f"/{path}": rendering.files[path].decode("utf-8") for path in read},
    }


def _question(plan: Plan, desired: Desired, topic: str) -> dict[str, Any]:
    return {
        "docker_host": desired.docker_host,
        "cache": f"{plan.instance.state}/arguments",
        "name": f"vllm-frontdoor-{plan.instance.name}-{topic}",
    }


def engines(
    plan: Plan, rendering: Rendering, desired: Desired, earlier: Earlier | None = None
) -> dict[str, Any]:
    """Parameters for the engines' project, which keeps the registry as well: it follows the containers."""
    root = plan.instance.root
    paths = [path for path in rendering.files if path.startswith("engines/")]
    names = [placement.service.name for placement in plan.placements]
    return {
        **_common(plan, rendering.engines, desired),
        "files": _files(rendering, [*paths, LAUNCHER, REGISTRY, DEVICE_MEMORY]),
        "directories": [
            _folder(f"{root}/engines", mode="0750"),
            _folder(f"{root}/launcher"),
            _folder(LOCKS),
        ],
        # Made with the router. What a removed service leaves there is in use until its container is gone.
        "tidied": [{"path": f"{root}/{LAUNCHER_TOKENS}", "holds": names}],
        "secrets": [],
        "reload": _reload(plan, "registry/"),
        "replacement": {
            "url": admin_url(plan),
            "token_file": f"{root}/{ADMIN_TOKEN}",
            "registry": REGISTRY,
            "waves": [list(wave) for wave in plan.waves],
            "drain_seconds": desired.drain_seconds,
            "prove_seconds": desired.prove_timeout_seconds,
        },
        "transports": _transports(plan),
        "previous": _previous(earlier, "engines/", lambda rendering: rendering.engines),
    }


def router(
    plan: Plan, rendering: Rendering, desired: Desired, earlier: Earlier | None = None
) -> dict[str, Any]:
    """Parameters for the router's project. The router's own user gets what it reads, and no more.

    Of the registry it gets the first one here; from then on it changes with the engines.
    """
    root, state = plan.instance.root, plan.instance.state
    uid, gid = str(plan.router.uid), str(plan.router.gid)
    launchers = [f"{LAUNCHER_TOKENS}/{placement.service.name}" for placement in plan.placements]
    return {
        **_common(plan, rendering.router, desired),
        "files": [
            *_files(rendering, [ROUTER_COMPOSE, ROUTER_ENVIRONMENT]),
            *(
                {**file, "group": gid}
                for file in _files(rendering, [path for path in rendering.files if _is_secret(path)])
            ),
            *({**file, "once": True} for file in _files(rendering, [REGISTRY])),
        ],
        "directories": [
            _folder(f"{root}/router", mode="0750"),
            _folder(f"{root}/registry"),
            _folder(f"{root}/secrets", mode="0750", group=gid),
            *(_folder(f"{root}/{path}", mode="0750", group=gid) for path in (LAUNCHER_TOKENS, *launchers)),
            _folder(f"{state}/router", mode="0750", owner=uid, group=gid),
        ],
        "tidied": [],
        "secrets": [
            {"path": path, "bytes": _TOKEN_BYTES, "mode": "0640", "owner": _ROOT_USER, "group": gid}
            for path in (ADMIN_TOKEN, *(f"{folder}/token" for folder in launchers))
        ],
        "reload": _reload(plan, "secrets/"),
        "replacement": None,
        "transports": [],
        "previous": _previous(earlier, "router/", lambda rendering: rendering.router),
    }


def _reload(plan: Plan, when_changed: str) -> dict[str, str]:
    token_file = f"{plan.instance.root}/{ADMIN_TOKEN}"
    return {"url": admin_url(plan), "token_file": token_file, "when_changed": when_changed}


def _previous(
    earlier: Earlier | None, folder: str, project_of: Callable[[Rendering], ComposeProject]
) -> dict[str, Any] | None:
    if earlier is None:
        return None
    files = {
        path: content
        for path, content in earlier.rendering.files.items()
        if path.startswith(folder) or path == REGISTRY
    }
    return {
        "name": earlier.name,
        "compose": dict(project_of(earlier.rendering).definition),
        "files": [
            {"path": path, **_content(path, content.decode("utf-8"))} for path, content in files.items()
        ],
        "transports": _transports(earlier.plan),
    }


def _transports(plan: Plan) -> list[dict[str, Any]]:
    """What NCCL has to show in the log of each model that is split over GPUs.

    The ranks are those of its largest group: tensor and pipeline parts have groups of their own.
    """
    return [
        {
            "service": placement.service.name,
            "ranks": max(placement.service.tensor_parallel, placement.service.pipeline_parallel),
            "peer_allowed": placement.path == "peer",
        }
        for placement in plan.placements
        if placement.talks_by_nccl
    ]


def clearance(plan: Plan, desired: Desired, script: str) -> dict[str, Any]:
    """Parameters for what clears the engines at each boot."""
    instance = plan.instance
    devices = {device.key for placement in plan.placements for device in placement.devices}
    return {
        "folder": f"{instance.root}/clearance",
        "script": script,
        "unit": f"vllm-frontdoor-{instance.name}-clearance",
        "config": {
            "instance": instance.name,
            "docker_host": desired.docker_host,
            "image": plan.engine_image.id,
            "package": f"{instance.root}/diag",
            "evidence": instance.evidence,
            "output": f"{instance.clearance}/clearance.json",
            "boot_id_file": "/proc/sys/kernel/random/boot_id",
            "cpu_devices": max(2, len(devices)) if plan.kind == "cpu" else 0,
            "control": any(placement.parts > 1 for placement in plan.placements),
        },
    }


def _common(plan: Plan, project: ComposeProject, desired: Desired) -> dict[str, Any]:
    return {
        "root": plan.instance.root,
        "state": plan.instance.state,
        "instance": plan.instance.name,
        "docker_host": desired.docker_host,
        "project": project.name,
        "compose_file": project.file,
        "compose": dict(project.definition),
        "healthy_timeout_seconds": desired.healthy_timeout_seconds,
        "log_lines": _LOG_LINES,
    }


def _files(rendering: Rendering, paths: Iterable[str]) -> list[dict[str, Any]]:
    return [_file(path, rendering.files[path].decode("utf-8")) for path in paths]


def _file(path: str, content: str) -> dict[str, Any]:
    mode = "0640" if _is_private(path) else "0644"
    return {
        "path": path,
        **_content(path, content),
        "mode": mode,
        "owner": _ROOT_USER,
        "group": _ROOT_USER,
    }


def _content(path: str, content: str) -> dict[str, str]:
    return {"secret_content" if _is_private(path) else "content": content}


def _is_private(path: str) -> bool:
    """Environments may hold secrets: only root reads them (Compose is root), and nobody logs them."""
    return path.endswith(".env") or _is_secret(path)


def _is_secret(path: str) -> bool:
    return path.startswith("secrets/")


def _folder(
    path: str, mode: str = "0755", owner: str = _ROOT_USER, group: str = _ROOT_USER
) -> dict[str, str]:
    return {"path": path, "mode": mode, "owner": owner, "group": group}
