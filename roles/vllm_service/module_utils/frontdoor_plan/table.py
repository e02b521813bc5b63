"""Tables and messages for people: the plan, and the reasons why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from .model import Device, Figure, Placement, Plan, Refusal
from .prediction import UNKNOWN_IMAGE_ID
from .rules.memory import gib, plain, share
from .sizes import claim

_HABITS = ("service", "idle: sleeps", "idle: offloads", "level 2", "aliases")
_LEVEL_2 = {"auto": "once proven", "always": "always", "never": "never"}


def plan_table(plan: Plan, granted: Sequence[str] = ()) -> str:
    """The plan as text: who runs where, with how much, and in which order they start.

    `granted` names what was not looked at yet, where a plan is made before it could be.
    """
    rows = [row for device in plan.devices for row in _device_rows(plan, device)]
    headings = (
        ("device", "cores", "service", "task", "model", "KV cache")
        if plan.kind == "cpu"
        else ("device", "memory", "service", "task", "fraction", "share", "residue", "sum", "limit")
    )
    order = ", then ".join(" beside ".join(wave) for wave in plan.waves)
    return "\n".join(
        [
            f"Instance {plan.instance.name}: clients on port {plan.instance.public_port}, "
            f"administration on 127.0.0.1:{plan.instance.admin_port}, engines in {plan.instance.network}",
            f"Engine image {plan.engine_image.reference} ({_short(plan.engine_image.id)}), "
            f"device kind {plan.kind}",
            *_columns([headings, *rows]),
            *_columns([_HABITS, *(_habits(placement) for placement in plan.placements)]),
            _front_door(plan),
            f"Start order: {order}",
            _host_line(plan),
            *_paths(plan),
            *(f"Warning: {warning}" for warning in plan.warnings),
            *([f"Taken for granted, and shown by ./box site: {'; '.join(granted)}"] if granted else []),
        ]
    )


def _habits(placement: Placement) -> tuple[str, ...]:
    """When a service sleeps by itself, how deeply, and what else clients may call it."""
    service = placement.service
    minutes = (placement.idle_sleep_minutes, placement.idle_offload_minutes)
    return (
        service.name,
        *("never, pinned" if service.pin else f"after {each} min" if each else "never" for each in minutes),
        _LEVEL_2[service.allow_level_2],
        ", ".join(service.aliases),
    )


def _front_door(plan: Plan) -> str:
    secrets = plan.router.secrets
    keys = "off" if secrets.api_keys is None else f"on ({len(secrets.api_keys)})"
    return f"For clients: API keys {keys}, TLS {'on' if secrets.has_tls else 'off'}"


def _host_line(plan: Plan) -> str:
    total = sum(placement.memory.host.size for placement in plan.placements)
    parts = ", ".join(
        f"{placement.service.name} {_figure(placement.memory.host)}" for placement in plan.placements
    )
    what = "all engines" if plan.kind == "cpu" else "all services asleep at level 1"
    limit = plan.host_memory_limit * gib(plan.host_memory_bytes)
    return f"Host memory for {what}: {parts}; sum {gib(total):.1f} GiB, limit {limit:.1f} GiB"


def _figure(figure: Figure) -> str:
    return f"{gib(figure.size):.1f} GiB {'measured' if figure.measured else 'estimated'}"


def _paths(plan: Plan) -> list[str]:
    peers = [placement.service.name for placement in plan.placements if placement.path == "peer"]
    if not peers:
        return ["GPU to GPU: the staged path, through host memory, for every service"]
    return [
        f"GPU to GPU: the peer path for {', '.join(peers)} (earned by evidence; in another boot the staged "
        "path); the staged path, through host memory, for every other service"
    ]


def _short(image_id: str) -> str:
    return "not on the box yet" if image_id == UNKNOWN_IMAGE_ID else image_id.removeprefix("sha256:")[:12]


def _on(plan: Plan, device: Device) -> list[Placement]:
    return [
        placement for placement in plan.placements if device.key in {found.key for found in placement.devices}
    ]


def _device_rows(plan: Plan, device: Device) -> list[tuple[str, ...]]:
    placements = _on(plan, device)
    if plan.kind == "cpu":
        cores = ",".join(str(core) for core in device.cores)
        return [_cpu_row(plan, device, cores, placement) for placement in placements] or [
            (device.name, cores, "nobody", "", "", "")
        ]
    memory = gib(device.memory_bytes or 0)
    total = sum((_claim(device, placement) for placement in placements), Decimal(0))
    rows = [_gpu_row(device, memory, placement) for placement in placements] or [
        (device.name, f"{memory:.1f} GiB", *("nobody", "", "", "", "", "", ""))
    ]
    last = rows[-1]
    return [*rows[:-1], (*last[:7], f"{share(total)} = {total * memory:.1f} GiB", plain(plan.memory_limit))]


def _claim(device: Device, placement: Placement) -> Decimal:
    return claim(placement.memory.fraction or Decimal(0), placement.memory.residue, device)


def _cpu_row(plan: Plan, device: Device, cores: str, placement: Placement) -> tuple[str, ...]:
    cache = placement.service.kv_cache_memory_gib
    size = plan.cpu_kv_cache_gib if cache is None else cache
    service = placement.service
    return (device.name, cores, service.name, service.task, service.model, f"{size} GiB")


def _gpu_row(device: Device, memory: Decimal, placement: Placement) -> tuple[str, ...]:
    fraction = placement.memory.fraction or Decimal(0)
    service = placement.service
    return (
        device.name,
        f"{memory:.1f} GiB",
        service.name,
        service.task,
        share(fraction),
        f"{fraction * memory:.1f} GiB",
        _figure(placement.memory.residue),
        "",
        "",
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [f"  {line}".rstrip() for line in lines]


def refusal_message(refusals: Iterable[Refusal], running: str) -> str:
    """All refusals as one message; `running` says what happens to what runs already."""
    numbered = list(enumerate(refusals, start=1))
    count = "1 reason stands" if len(numbered) == 1 else f"{len(numbered)} reasons stand"
    parts = [f"There is no plan: {count} against it. {running}"]
    for number, refusal in numbered:
        parts.append(
            f"{number}. {refusal.what}\n"
            f"   where: {refusal.where}\n"
            f"   why: {refusal.why}\n"
            f"   what to do: {refusal.remedy}"
        )
    return "\n".join(parts)
