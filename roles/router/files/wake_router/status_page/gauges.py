"""Further metrics, made when they are asked for: conditions, pins, estimates, limits, disk and evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wake_router.executor import Executor
from wake_router.lifecycle import Condition, Depth
from wake_router.settings import Settings
from wake_router.status_page.evidence import EvidenceView
from wake_router.waits import estimated_wake_seconds

WOKEN_FROM: Final = (Depth.SLEEPING, Depth.OFFLOADED, Depth.STOPPED, Depth.RESTARTING)


class OperatorGauges(Collector):
    """Registered beside the router's own metrics."""

    def __init__(self, settings: Settings, executor: Executor, evidence: Callable[[], EvidenceView]) -> None:
        self._settings = settings
        self._executor = executor
        self._evidence = evidence

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry that asks would otherwise collect before the router is complete."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges as they are now."""
        yield from self._services()
        yield from self._limits()
        yield from self._disk(self._settings.state)
        yield from _evidence(self._evidence())

    def _services(self) -> Iterator[Metric]:
        condition = GaugeMetricFamily(
            "frontdoor_condition", "1 while a condition holds", labels=["service", "condition"]
        )
        pinned = GaugeMetricFamily("frontdoor_pinned", "1 while a service is pinned", labels=["service"])
        estimate = GaugeMetricFamily(
            "frontdoor_wake_estimate_seconds",
            "How long a wake is expected to take, by the depth it starts from",
            labels=["service", "from_depth"],
        )
        for service, state in self._executor.services():
            for each in Condition:
                condition.add_metric([service.name, each.value], float(each in state.conditions))
            pinned.add_metric([service.name], float(self._executor.pinned(service.name)))
            samples = self._executor.handle(service.name).notebook.memory.wake_seconds
            for depth in WOKEN_FROM:
                seconds = estimated_wake_seconds(depth, self._executor.waits, samples, 0.0)
                estimate.add_metric([service.name, depth.value], seconds)
        yield from (condition, pinned, estimate)

    def _limits(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "frontdoor_held_limit",
            "How many requests may wait for one service",
            value=self._settings.held_max,
        )

    def _disk(self, folder: Path) -> Iterator[Metric]:
        try:
            disk = os.statvfs(folder)
        except OSError:
            return
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        yield GaugeMetricFamily("frontdoor_state_disk_bytes", "Size of the state's file system", value=size)
        yield GaugeMetricFamily("frontdoor_state_disk_free_bytes", "What is free of it", value=free)


def _evidence(view: EvidenceView) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "frontdoor_evidence_age_seconds", "Since the newest record of a probe", labels=["probe", "subject"]
    )
    good = GaugeMetricFamily(
        "frontdoor_evidence_verdict",
        "1 for the verdict of a probe's newest record",
        labels=["probe", "subject", "verdict"],
    )
    trusted = GaugeMetricFamily(
        "frontdoor_evidence_trusted",
        "1 while a record is of this boot and nothing has revoked it",
        labels=["probe"],
    )
    for path in view.paths:
        age.add_metric([path.kind, "box"], path.age_seconds)
        good.add_metric([path.kind, "box", path.verdict], 1.0)
        trusted.add_metric([path.kind], float(path.of_this_boot and not path.suspicions))
    for weights in view.weights:
        age.add_metric(["weights", weights.model], weights.age_seconds)
        good.add_metric(["weights", weights.model, weights.verdict], 1.0)
    yield from (age, good, trusted)
