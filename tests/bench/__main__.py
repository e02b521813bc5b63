"""`./box bench`: prints a table; `--json FILE` writes one list of figures.

Subjects take turns in short slices, several rounds of them, so that what else the machine does meets all
alike; a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.load import Result, held_open, request, run
from tests.bench.report import Report
from tests.bench.subjects import Subject, started_nginx, started_router, started_upstream
from tests.standin.processes import HTTP, Router, wait_until

FEW, MANY = 250, 1000
"""Requests at which memory is measured: the difference is free of what a first request costs."""


@dataclass(frozen=True)
class Effort:
    """How long is measured; times in seconds."""

    slice_seconds: float
    rounds: int
    wakes: int


FULL, QUICK, GLANCE = Effort(2.0, 5, 20), Effort(0.6, 3, 7), Effort(0.1, 1, 1)


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="./box bench", description="Measure the router beside its bare upstream and nginx."
    )
    parser.add_argument("--quick", action="store_true", help="under two minutes")
    parser.add_argument("--glance", action="store_true", help="only see whether it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args()
    effort = GLANCE if arguments.glance else QUICK if arguments.quick else FULL
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        measure_memory(report, Path(name))
        measure_traffic(report, Path(name), effort)
    if arguments.json:
        report.write(arguments.json)
    return 0


def measure_traffic(report: Report, folder: Path, effort: Effort) -> None:
    """Everything but memory, with all subjects in front of one engine."""
    with ExitStack() as stack:
        upstream = stack.enter_context(started_upstream())
        router, process = stack.enter_context(started_router(folder / "router", upstream.port))
        nginx = stack.enter_context(started_nginx(folder / "nginx", upstream.port))
        subjects = [each for each in (upstream, nginx, router) if each is not None]
        measure_requests(report, subjects, effort)
        measure_streams(report, subjects, effort)
        measure_wakes(report, process, upstream.port, effort.wakes)


def measure_requests(report: Report, subjects: list[Subject], effort: Effort) -> None:
    """Small JSON at 1, 32 and 256 connections: how many, how long, how much processor time."""
    for connections in (1, 32, 256):
        rates, p50, p99, cpu = (empty(subjects) for _ in range(4))
        for subject in rounds(subjects, effort):
            before = subject.cpu_seconds()
            result = run(subject.port, request(subject.port), connections, effort.slice_seconds)
            check(result, subject.name)
            rates[subject.name].append(result.answers / result.seconds)
            p50[subject.name].append(result.percentile_ms(0.5))
            p99[subject.name].append(result.percentile_ms(0.99))
            cpu[subject.name].append(1e6 * (subject.cpu_seconds() - before) / result.answers)
        load = f"{connections} connections"
        report.add_rounds("requests_per_s", load, rates, "1/s")
        for figure, measured in (("latency_ms_p50", p50), ("latency_ms_p99", p99)):
            report.add_rounds(figure, load, measured, "ms")
            report.add_rounds(f"added_{figure}", load, beyond(measured, "upstream"), "ms")
        report.add_rounds("cpu_us_per_request", load, cpu, "us")


def measure_streams(report: Report, subjects: list[Subject], effort: Effort) -> None:
    """Streams of 100 chunks, 1, 64 and 256 at once."""
    for streams in (1, 64, 256):
        rates, cpu = empty(subjects), empty(subjects)
        for subject in rounds(subjects, effort):
            before = subject.cpu_seconds()
            result = run(subject.port, request(subject.port, stream=True), streams, effort.slice_seconds)
            check(result, subject.name)
            rates[subject.name].append(result.chunks / result.seconds)
            cpu[subject.name].append(1e6 * (subject.cpu_seconds() - before) / result.chunks)
        load = f"{streams} streams"
        report.add_rounds("chunks_per_s", load, rates, "1/s")
        report.add_rounds("cpu_us_per_chunk", load, cpu, "us")
        if "nginx" in rates:
            shares = [mine / its for mine, its in zip(rates["router"], rates["nginx"], strict=True)]
            report.add("chunks_per_s_share", "router", load, median(shares), "of nginx's")


def empty(subjects: list[Subject]) -> dict[str, list[float]]:
    """No rounds yet of any subject."""
    return {each.name: [] for each in subjects}


def rounds(subjects: list[Subject], effort: Effort) -> Iterator[Subject]:
    """All subjects in turn, after one warm-up of each."""
    for subject in subjects:
        run(subject.port, request(subject.port), 1, effort.slice_seconds / 4)
    for _ in range(effort.rounds):
        yield from subjects


def beyond(measured: dict[str, list[float]], base: str) -> dict[str, list[float]]:
    """By how much the others exceed one subject, round by round."""
    return {
        name: [value - least for value, least in zip(values, measured[base], strict=True)]
        for name, values in measured.items()
        if name != base
    }


def measure_wakes(report: Report, router: Router, upstream: int, count: int) -> None:
    """1,000 requests at once on one sleeping model; and the router's own share of a wake."""
    order_sleep(router, upstream, 1.0)
    result = run(router.port, request(router.port), 1000, 0, once=True)
    check(result, "router")
    wakes = float(HTTP.get(f"http://127.0.0.1:{upstream}/bench/wakes").text)
    report.add("wakes", "router", "1000 simultaneous requests", wakes, "wakes")
    overheads = []
    for _ in range(count):
        order_sleep(router, upstream, 0.1)
        result = run(router.port, request(router.port), 1, 0, once=True)
        check(result, "router")
        overheads.append(result.latencies[0] * 1000 - 100)
    report.add("wake_overhead_ms", "router", f"median of {count} wakes", median(overheads), "ms")


def order_sleep(router: Router, upstream: int, wake_seconds: float) -> None:
    """Put the engine to sleep, to wake in so many seconds."""
    HTTP.get(f"http://127.0.0.1:{upstream}/bench/wake_seconds={wake_seconds}")
    assert router.order("services/bench/sleep").status_code == 200


def measure_memory(report: Report, folder: Path) -> None:
    """What one more held request and one more open stream take, each in a router that did nothing else."""
    with fresh_router(folder / "for-held") as (router, process, upstream):
        order_sleep(process, upstream, 600.0)
        plain = request(router.port)
        grown = growth_kib(router, plain, lambda count: process.status("bench")["held"] == count)
        report.add("memory_kib", "router", "per held request", grown, "KiB")
    with fresh_router(folder / "for-streams") as (router, process, _):
        slow = request(router.port, stream=True, extra=', "x": "slow"')
        grown = growth_kib(router, slow, lambda count: process.status("bench")["in_flight"] == count)
        report.add("memory_kib", "router", "per open stream", grown, "KiB")


@contextmanager
def fresh_router(folder: Path) -> Iterator[tuple[Subject, Router, int]]:
    """A router and an engine of its own, whose port comes last."""
    with started_upstream() as upstream, started_router(folder, upstream.port) as (router, process):
        run(router.port, request(router.port), 1, 0.2)
        yield router, process, upstream.port


def growth_kib(router: Subject, wire: bytes, has: Callable[[int], bool]) -> float:
    """Resident memory per request beyond the first ones, while all are open."""
    with held_open(router.port, wire, FEW):
        wait_until(lambda: has(FEW), 60, f"{FEW} requests")
        before = router.memory_kib()
        with held_open(router.port, wire, MANY - FEW):
            wait_until(lambda: has(MANY), 60, f"{MANY} requests")
            return (router.memory_kib() - before) / (MANY - FEW)


def check(result: Result, subject: str) -> None:
    """A figure made of failures is none."""
    if result.failures or not result.answers:
        raise SystemExit(
            f"{subject}: {result.failures} of {result.answers} answers failed; nothing was measured"
        )


if __name__ == "__main__":
    sys.exit(main())
