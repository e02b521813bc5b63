"""What the converge module is asked to bring about: one Compose project with its files and folders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .instance import LOCKS
from .model import Desired, Plan
from .render import (
    ADMIN_TOKEN,
    LAUNCHER,
    REGISTRY,
    ROUTER_COMPOSE,
    ROUTER_ENVIRONMENT,
    ComposeProject,
    Rendering,
    admin_url,
)

_ROOT_USER = "0"
_LOG_LINES = 30
_TOKEN_BYTES = 32


def engines(plan: Plan, rendering: Rendering, desired: Desired) -> dict[str, Any]:
    """Parameters for the engines' project."""
    root = plan.instance.root
    paths = [path for path in rendering.files if path.startswith("engines/")]
    return {
        **_common(plan, rendering.engines, desired),
        "files": _files(rendering, [*paths, LAUNCHER]),
        "directories": [
            _folder(f"{root}/engines", mode="0750"),
            _folder(f"{root}/launcher"),
            _folder(LOCKS),
            _folder(plan.instance.clearance),
        ],
        "secrets": [],
        "reload": None,
    }


def router(plan: Plan, rendering: Rendering, desired: Desired) -> dict[str, Any]:
    """Parameters for the router's project. The router's own user gets what it reads, and no more."""
    root, state = plan.instance.root, plan.instance.state
    uid, gid = str(plan.router.uid), str(plan.router.gid)
    return {
        **_common(plan, rendering.router, desired),
        "files": _files(rendering, [ROUTER_COMPOSE, ROUTER_ENVIRONMENT, REGISTRY]),
        "directories": [
            _folder(f"{root}/router", mode="0750"),
            _folder(f"{root}/registry"),
            _folder(f"{root}/secrets", mode="0750", group=gid),
            _folder(f"{state}/router", mode="0750", owner=uid, group=gid),
        ],
        "secrets": [
            {"path": ADMIN_TOKEN, "bytes": _TOKEN_BYTES, "mode": "0640", "owner": _ROOT_USER, "group": gid}
        ],
        "reload": {
            "url": f"{admin_url(plan)}/admin/reload",
            "token_file": f"{root}/{ADMIN_TOKEN}",
            "when_changed": "registry/",
        },
    }


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
    """A file. Environments may hold secrets: only root reads them (Compose is root), and nobody logs them."""
    private = path.endswith(".env")
    return {
        "path": path,
        "secret_content" if private else "content": content,
        "mode": "0640" if private else "0644",
        "owner": _ROOT_USER,
        "group": _ROOT_USER,
    }


def _folder(
    path: str, mode: str = "0755", owner: str = _ROOT_USER, group: str = _ROOT_USER
) -> dict[str, str]:
    return {"path": path, "mode": mode, "owner": owner, "group": group}
