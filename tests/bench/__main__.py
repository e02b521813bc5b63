"""`python -m tests.bench`: prints a table; `--json FILE` writes one list of figures."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.load import Result, request, run
from tests.standin.processes import HTTP, ROOT, Router, free_port, wait_until

NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{
    server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000;
  }}
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_buffering off; proxy_http_version 1.1;
      proxy_set_header Connection ""; }} }}
}}"""


@dataclass
class Report:
    """All figures."""

    figures: list[dict[str, object]] = field(default_factory=list)

    def add(self, figure: str, subject: str, load: str, value: float, unit: str) -> None:
        """Keep and print one."""
        entry = {"figure": figure, "subject": subject, "load": load, "value": round(value, 3), "unit": unit}
        self.figures.append(entry)
        print(f"{figure:<22} {subject:<10} {load:<24} {value:>12,.2f} {unit}", flush=True)


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two minutes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    seconds = 2.0 if arguments.quick else 8.0
    report = Report()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(started_upstream())
        router = stack.enter_context(started_router(folder / "router", upstream))
        subjects = {"upstream": upstream, "router": router.port}
        if shutil.which("nginx"):
            subjects["nginx"] = stack.enter_context(started_nginx(folder / "nginx", upstream))
        else:
            print("nginx is not installed, so it is left out (Debian: apt-get install nginx-light)")
        measure_memory(report, router, upstream)
        measure_requests(report, subjects, router, seconds)
        measure_streams(report, subjects, seconds)
        measure_wakes(report, router, upstream, 5 if arguments.quick else 20)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=1))
    return 0


@contextmanager
def started_upstream() -> Iterator[int]:
    """The engine, in a process of its own."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.upstream", str(port)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@contextmanager
def started_router(folder: Path, upstream: int) -> Iterator[Router]:
    """The router, with its usual intervals."""
    router = Router(folder, {"ROUTER_OBSERVE_INTERVAL": "1", "ROUTER_HELD_MAX": "5000"})
    router.register(
        {
            "name": "bench",
            "model": "bench-model",
            "base_url": f"http://127.0.0.1:{upstream}",
            "devices": ["cpu:bench"],
            "idle_sleep_seconds": 0,
            "allow_level_2": "never",
        }
    )
    try:
        router.start()
        assert router.order("services/bench/wake").status_code == 200
        yield router
    finally:
        router.kill()


@contextmanager
def started_nginx(folder: Path, upstream: int) -> Iterator[int]:
    """nginx with buffering off, one worker."""
    folder.mkdir()
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, upstream=upstream, port=port))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    time.sleep(0.5)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def measure_requests(report: Report, subjects: dict[str, int], router: Router, seconds: float) -> None:
    """Small JSON at 1, 32 and 256 connections."""
    for connections in (1, 32, 256):
        for subject, port in subjects.items():
            before = cpu_seconds(router)
            result = run(port, request(port), connections, seconds)
            load = f"{connections} connections"
            check(result, subject)
            report.add("requests_per_s", subject, load, result.answers / result.seconds, "1/s")
            report.add("latency_ms_p50", subject, load, result.percentile_ms(0.5), "ms")
            report.add("latency_ms_p99", subject, load, result.percentile_ms(0.99), "ms")
            if subject == "router":
                used = cpu_seconds(router) - before
                report.add("cpu_us_per_request", subject, load, 1e6 * used / result.answers, "us")


def measure_streams(report: Report, subjects: dict[str, int], seconds: float) -> None:
    """Streams of 100 chunks, 1, 64 and 256 at once."""
    for streams in (1, 64, 256):
        for subject, port in subjects.items():
            result = run(port, request(port, stream=True), streams, seconds)
            check(result, subject)
            report.add("chunks_per_s", subject, f"{streams} streams", result.chunks / result.seconds, "1/s")


def measure_wakes(report: Report, router: Router, upstream: int, rounds: int) -> None:
    """1,000 requests at once on one sleeping model; and the router's own share of a wake."""
    order_sleep(router, upstream, 1.0)
    result = run(router.port, request(router.port), 1000, 0, once=True)
    check(result, "router")
    wakes = float(HTTP.get(f"http://127.0.0.1:{upstream}/bench/wakes").text)
    report.add("wakes", "router", "1000 simultaneous requests", wakes, "wakes")
    overheads = []
    for _ in range(rounds):
        order_sleep(router, upstream, 0.1)
        result = run(router.port, request(router.port), 1, 0, once=True)
        overheads.append(result.latencies[0] * 1000 - 100)
    report.add(
        "wake_overhead_ms", "router", f"median of {rounds} wakes", sorted(overheads)[rounds // 2], "ms"
    )


def order_sleep(router: Router, upstream: int, wake_seconds: float) -> None:
    """Put the engine to sleep, to wake in so many seconds."""
    HTTP.get(f"http://127.0.0.1:{upstream}/bench/wake_seconds={wake_seconds}")
    assert router.order("services/bench/sleep").status_code == 200


def measure_memory(report: Report, router: Router, upstream: int) -> None:
    """Resident memory per held request and per open stream, while the router is still young."""
    run(router.port, request(router.port), 1, 0.2)
    order_sleep(router, upstream, 6.0)
    before = memory_kib(router)
    with in_background(router.port, request(router.port), 1000):
        wait_until(lambda: router.status("bench")["held"] == 1000, 30, "1000 held requests")
        held = (memory_kib(router) - before) / 1000
    report.add("memory_kib", "router", "per held request", held, "KiB")
    before = memory_kib(router)
    with in_background(router.port, request(router.port, stream=True, extra=', "x": "slow"'), 500):
        wait_until(lambda: router.status("bench")["in_flight"] == 500, 30, "500 open streams")
        time.sleep(1.0)
        per_stream = (memory_kib(router) - before) / 500
    report.add("memory_kib", "router", "per open stream", per_stream, "KiB")


@contextmanager
def in_background(port: int, wire: bytes, connections: int) -> Iterator[None]:
    """Let so many clients ask once, and wait for them at the end."""
    asking = threading.Thread(target=run, args=(port, wire, connections, 0, True))
    asking.start()
    try:
        yield
    finally:
        asking.join()


def check(result: Result, subject: str) -> None:
    """A figure made of failures is none."""
    if result.failures or not result.answers:
        raise SystemExit(
            f"{subject}: {result.failures} of {result.answers} answers failed; nothing was measured"
        )


def memory_kib(router: Router) -> float:
    """Resident memory of the router."""
    assert router.process is not None
    pages = int(Path(f"/proc/{router.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def cpu_seconds(router: Router) -> float:
    """Processor time that the router has used."""
    assert router.process is not None
    fields = Path(f"/proc/{router.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
