"""What is measured: a fast engine, and what stands in front of it. Each in processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.standin.ports import free_port
from tests.standin.processes import HTTP, ROOT, Router, wait_until

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
class Subject:
    """Something that answers on a port, and the processes whose time it takes."""

    name: str
    port: int
    processes: list[int]

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_kib(self) -> float:
        """Resident memory; what the kernel keeps for sockets isn't in it."""
        pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in self.processes)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024


@contextmanager
def started_upstream() -> Iterator[Subject]:
    """The engine."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.upstream", str(port)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Subject("upstream", port, [process.pid])
    finally:
        process.kill()
        process.wait()


@contextmanager
def started_router(folder: Path, upstream: int) -> Iterator[tuple[Subject, Router]]:
    """The router, with its usual intervals, and its engine awake."""
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
        assert router.process is not None
        assert router.order("services/bench/wake").status_code == 200
        yield Subject("router", router.port, [router.process.pid]), router
    finally:
        router.kill()


@contextmanager
def started_nginx(folder: Path, upstream: int) -> Iterator[Subject | None]:
    """nginx with buffering off; None, and a word about it, where it isn't installed."""
    if shutil.which("nginx") is None:
        print("nginx is not installed, so it is left out. On Debian or Ubuntu: apt-get install nginx")
        yield None
        return
    folder.mkdir()
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, upstream=upstream, port=port))
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: (folder / "pid").exists() and _answers(port), what="nginx")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Subject("nginx", port, [process.pid, *map(int, children)])
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    return HTTP.get(f"http://127.0.0.1:{port}/").status_code == 200
