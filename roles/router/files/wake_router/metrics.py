"""What Prometheus sees. Durations in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wake_router.lifecycle import Condition, Depth, ServiceState
from wake_router.tokens import Tokens

_WAKE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 240, 600, 1800)
_REQUEST_BUCKETS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1200)


class Metrics:
    """All of the router's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "frontdoor_requests", "Answered requests", ["service", "key", "status"], registry=self.registry
        )
        self.tokens = Counter(
            "frontdoor_tokens",
            "Tokens that engines report, prompt or completion",
            ["service", "key", "kind"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "frontdoor_refusals", "Requests answered by the router itself", ["code"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "frontdoor_request_seconds",
            "From the request's head to its response's last byte",
            ["service"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.held_seconds = Histogram(
            "frontdoor_held_seconds",
            "How long requests waited in the router",
            ["service"],
            buckets=_WAKE_BUCKETS,
            registry=self.registry,
        )
        self.transitions = Counter(
            "frontdoor_transitions",
            "Sleeps and wakes",
            ["service", "transition", "from_depth", "outcome"],
            registry=self.registry,
        )
        self.transition_seconds = Histogram(
            "frontdoor_transition_seconds",
            "How long successful sleeps and wakes took",
            ["service", "transition", "from_depth"],
            buckets=_WAKE_BUCKETS,
            registry=self.registry,
        )
        self.canary_seconds = Histogram(
            "frontdoor_canary_seconds",
            "How long the canary of a wake took",
            ["service"],
            buckets=_WAKE_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "frontdoor_in_flight", "Requests at the engine", ["service"], registry=self.registry
        )
        self.held = Gauge(
            "frontdoor_held", "Requests waiting in the router", ["service"], registry=self.registry
        )
        self.depth = Gauge(
            "frontdoor_depth",
            "1 for the depth that a service is at",
            ["service", "depth"],
            registry=self.registry,
        )
        self.condition = Gauge(
            "frontdoor_condition",
            "1 for a condition that a service is in: draining, maintenance, quarantined, ...",
            ["service", "condition"],
            registry=self.registry,
        )
        self.cordoned = Gauge(
            "frontdoor_device_cordoned", "1 for a device that is cordoned", ["device"], registry=self.registry
        )
        self.depth_seconds = Counter(
            "frontdoor_depth_seconds",
            "Time spent at each depth",
            ["service", "depth"],
            registry=self.registry,
        )

    def count_tokens(self, service: str, key: str, tokens: Tokens | None) -> None:
        """Count what an answer reported; None: nothing."""
        if tokens is not None:
            self.tokens.labels(service, key, "prompt").inc(tokens.prompt)
            self.tokens.labels(service, key, "completion").inc(tokens.completion)

    def show(self, services: Iterable[tuple[str, ServiceState]], cordoned: Iterable[str]) -> bytes:
        """The exposition text, for the services and the cordoned devices as they are now."""
        for gauge in (self.in_flight, self.held, self.depth, self.condition, self.cordoned):
            gauge.clear()
        for name, state in services:
            self.in_flight.labels(name).set(state.in_flight)
            self.held.labels(name).set(state.held)
            for depth in Depth:
                self.depth.labels(name, depth.value).set(depth is state.depth)
            for condition in Condition:
                self.condition.labels(name, condition.value).set(condition in state.conditions)
        for device in cordoned:
            self.cordoned.labels(device).set(1)
        return generate_latest(self.registry)
