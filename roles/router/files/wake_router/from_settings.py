"""What the settings and the registry mean for each service and each engine."""

from __future__ import annotations

from collections.abc import Set

from wake_router.engine import Timeouts
from wake_router.guardian import Intervals
from wake_router.memory import Memory, level_2_verdict
from wake_router.registry import Service
from wake_router.service_state import Policy
from wake_router.settings import Settings
from wake_router.waits import Waits


def policy(settings: Settings, service: Service, memory: Memory, cordoned: Set[str]) -> Policy:
    """What holds for a service; `cordoned` are the devices on which nothing is woken."""
    sleep, offload = service.idle_sleep_seconds, service.idle_offload_seconds
    return Policy(
        idle_sleep_seconds=settings.idle_sleep_seconds if sleep is None else sleep,
        idle_offload_seconds=settings.idle_offload_seconds if offload is None else offload,
        pinned=service.pin,
        level_2_allowed=level_2_verdict(service, memory)[0],
        reload_trusted=service.allow_level_2 != "never",
        restartable=launcher_token(settings, service) is not None,
        held_max=settings.held_max,
        cordoned=not cordoned.isdisjoint(service.devices),
    )


def launcher_token(settings: Settings, service: Service) -> str | None:
    """With which the service's launcher takes orders; None: there is no launcher, or no token for it."""
    if service.launcher_url is None:
        return None
    try:
        token = (settings.launcher_tokens / service.name / "token").read_text().strip()
    except (OSError, ValueError):
        return None
    return token or None


def timeouts(settings: Settings) -> Timeouts:
    """How long an engine's calls may take."""
    return Timeouts(
        connect=settings.connect_timeout_seconds,
        sleep=settings.sleep_timeout_seconds,
        wake=settings.wake_timeout_seconds,
        reload=settings.reload_timeout_seconds,
        canary=settings.canary_timeout_seconds,
    )


def intervals(settings: Settings) -> Intervals:
    """How often engines are looked at."""
    return Intervals(
        look=settings.observe_interval_seconds,
        wedged=settings.wedged_seconds,
        corruption=settings.corruption_interval_seconds,
        canary=settings.canary_interval_seconds,
    )


def waits_of(settings: Settings) -> Waits:
    """How long requests wait."""
    return Waits(
        hold_sleeping=settings.hold_sleeping_seconds,
        hold_offloaded=settings.hold_offloaded_seconds,
        hold_restarting=settings.hold_restarting_seconds,
        hold_max=settings.hold_max_seconds,
        retry_after_sleeping=settings.retry_after_sleeping_seconds,
        retry_after_offloaded=settings.retry_after_offloaded_seconds,
        retry_after_restarting=settings.retry_after_restarting_seconds,
        retry_after_max=settings.retry_after_max_seconds,
    )
