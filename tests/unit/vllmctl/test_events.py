"""What happens between the past events and the stream of coming ones is neither lost nor told twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from vllmctl import looking

EARLIER, BETWEEN, LATER = ({"time": f"T{number}", "event": "note", "text": "x"} for number in range(3))


class Admin(BaseHTTPRequestHandler):
    """An admin listener on which something happens right after the stream was opened."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = json.dumps({"events": [EARLIER, BETWEEN]})
        if self.path == "/admin/events":
            told = "".join(f"event: note\ndata: {json.dumps(each)}\n\n" for each in (BETWEEN, LATER))
            body = f": listening\n\n{told}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def admin() -> Iterator[str]:
    Admin.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_stream_is_open_before_the_past_is_read(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = SimpleNamespace(obj=SimpleNamespace(box=SimpleNamespace(admin_url=admin)))
    looking.events(cast(typer.Context, context), follow=True, as_json=True)
    assert Admin.asked == ["/admin/events", "/admin/events/recent"]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [EARLIER, BETWEEN, LATER]


def test_without_following_only_the_past_is_read(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = SimpleNamespace(obj=SimpleNamespace(box=SimpleNamespace(admin_url=admin)))
    looking.events(cast(typer.Context, context), follow=False, as_json=True)
    assert Admin.asked == ["/admin/events/recent"]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [EARLIER, BETWEEN]
