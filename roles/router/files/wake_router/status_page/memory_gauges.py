"""Metrics of devices' memory, made when they are asked for. What isn't known has no series. In bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wake_router.admin_contract import DeviceMemory
from wake_router.memory_watch import MemoryWatch


class MemoryGauges(Collector):
    """Registered beside the router's own metrics."""

    def __init__(self, memory: MemoryWatch) -> None:
        self._memory = memory

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry that asks would otherwise collect before the router is complete."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges as they are now."""
        devices = self._memory.devices()
        yield from _devices(devices)
        yield _shares(devices)
        yield from self._services()

    def _services(self) -> Iterator[Metric]:
        resident = _by_service(
            "frontdoor_resident_memory_bytes", "What a service's processes hold of the host's memory"
        )
        age = _by_service("frontdoor_memory_age_seconds", "Since a service's memory was measured")
        for name, memory in self._memory.services().items():
            _add(resident, [name], memory.resident_bytes)
            _add(age, [name], memory.age_seconds)
        yield from (resident, age)


def _devices(devices: Iterable[DeviceMemory]) -> Iterator[Metric]:
    gauges = {
        "total_bytes": _by_device("total", "A device's memory; of a CPU device, the host's"),
        "limit_bytes": _by_device("limit", "What the plan gives away of it at most"),
        "planned_bytes": _by_device("planned", "What the plan allows its services at their present depths"),
        "used_bytes": _by_device("used", "What is used of it; of a CPU device, what its engines hold"),
    }
    for device in devices:
        for field, gauge in gauges.items():
            _add(gauge, [device.device], getattr(device, field))
    yield from gauges.values()


def _shares(devices: Iterable[DeviceMemory]) -> Metric:
    gauge = GaugeMetricFamily(
        "frontdoor_planned_memory_bytes",
        "What the plan allows a service of a device at its present depth",
        labels=["service", "device"],
    )
    for device in devices:
        for share in device.shares:
            _add(gauge, [share.service, device.device], share.planned_bytes)
    return gauge


def _by_device(what: str, description: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"frontdoor_device_memory_{what}_bytes", description, labels=["device"])


def _by_service(name: str, description: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, description, labels=["service"])


def _add(gauge: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        gauge.add_metric(labels, value)
