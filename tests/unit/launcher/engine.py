"""A small engine for the launcher's tests: answers /health with 200 once its start-up time is over.

Usage: engine.py PORT [--ready-after SECONDS] [--exit-after SECONDS] [--exit-code N] [--log FILE]
                      [--orphans N] [--straggler] [--escapee] [--ignore-term] [--toggle FILE]
                      [--close-port FILE] [--hold MEBIBYTES [--orphaned]]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--exit-after", type=float)
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--orphans", type=int, default=0)
    parser.add_argument("--straggler", action="store_true")
    parser.add_argument("--escapee", action="store_true", help="leave a process outside the group")
    parser.add_argument(
        "--close-port", type=Path, help="stop listening, and live on, once this file is there"
    )
    parser.add_argument("--hold", type=int, default=0, help="have a child hold so many MiB of memory")
    parser.add_argument("--orphaned", action="store_true", help="of which its parent leaves")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--toggle", type=Path, help="healthy only while this file is absent")
    return parser.parse_args()


def main() -> None:
    given = options()
    ready_at = time.monotonic() + given.ready_after

    def note(line: str) -> None:
        if given.log is not None:
            with given.log.open("a") as log:
                log.write(f"{time.monotonic():.6f} {line}\n")

    def on_signal(number: int, _frame: object) -> None:
        note(f"signal {signal.Signals(number).name}")
        if number == signal.SIGTERM and not given.ignore_term:
            note("end")
            os._exit(given.exit_code)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, on_signal)

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sick = given.toggle is not None and given.toggle.exists()
            self.send_response(200 if time.monotonic() >= ready_at and not sick else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    note(
        f"start pid={os.getpid()} group={os.getpgrp()} incarnation={os.environ.get('FRONTDOOR_INCARNATION')}"
    )
    for _ in range(given.orphans):
        # The shell ends at once, so its background process becomes an orphan that ends a moment later.
        subprocess.run(["/bin/sh", "-c", "sleep 0.2 &"], check=True)
    if given.straggler:
        straggler = [
            sys.executable,
            "-c",
            "import signal,time;signal.signal(15,signal.SIG_IGN);time.sleep(60)",
        ]
        note(f"straggler {subprocess.Popen(straggler).pid}")
    if given.escapee:
        sleeper = [sys.executable, "-c", "import time;time.sleep(60)"]
        note(f"escapee {subprocess.Popen(sleeper, start_new_session=True).pid}")
    if given.hold:
        holder = f"import time; held = bytearray(b'x') * ({given.hold} * 2**20); time.sleep(600)"
        shell = '"$0" -c "$1" & echo $!' if given.orphaned else 'echo $$; exec "$0" -c "$1"'
        started = subprocess.Popen(["/bin/sh", "-c", shell, sys.executable, holder], stdout=subprocess.PIPE)
        assert started.stdout is not None
        note(f"holder {started.stdout.readline().decode().strip()}")
    server = ThreadingHTTPServer(("127.0.0.1", given.port), Health)
    if given.close_port is not None:
        threading.Thread(target=close_once_told, args=(server, given.close_port, note), daemon=True).start()
    if given.exit_after is not None:
        threading.Timer(given.exit_after, os._exit, [given.exit_code]).start()
    server.serve_forever()
    threading.Event().wait()


def close_once_told(server: ThreadingHTTPServer, told: Path, note: Callable[[str], None]) -> None:
    while not told.exists():
        time.sleep(0.05)
    server.shutdown()
    server.server_close()
    note("closed")


if __name__ == "__main__":
    main()
