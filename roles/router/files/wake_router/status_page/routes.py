"""The routes of the status page on the admin listener.

Reading needs no token, like all of the admin surface; the listener is on the loopback address, and its
guard checks Host and Origin. Orders go to the admin surface with the token in a header: an operator types it
into the page, which keeps it in its own memory. There is no cookie, so nothing that a foreign page could
make a browser send along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from wake_router.admin_contract import Status
from wake_router.clock import Clock
from wake_router.event_sentences import with_sentence
from wake_router.events import Events
from wake_router.executor import Executor
from wake_router.metrics import Metrics
from wake_router.settings import Settings
from wake_router.status_page.evidence import EvidenceReader, EvidenceView, EvidenceWatch
from wake_router.status_page.gauges import OperatorGauges
from wake_router.status_page.page import PageView, content, page

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FOLDER: Final = Path(__file__).resolve().parent
_FILES: Final = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class StatusPage:
    """What the page's routes need, and what refreshes the evidence in the metrics."""

    executor: Executor
    clock: Clock
    events: Events
    status: Callable[[], Status]
    evidence: EvidenceWatch

    async def view(self) -> PageView:
        """Everything that is shown, as it is now."""
        wakes = {
            service.name: self.executor.handle(service.name).notebook.memory.wake_seconds
            for service, _ in self.executor.services()
        }
        now = datetime.fromtimestamp(self.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        evidence = await self.evidence.refresh()
        return PageView(self.status(), evidence, wakes, list(self.events.recent), now)


def add_status_page(
    app: FastAPI,
    settings: Settings,
    executor: Executor,
    clock: Clock,
    events: Events,
    metrics: Metrics,
    status: Callable[[], Status],
) -> EvidenceWatch:
    """Add the page, past events and evidence to the admin application, and further gauges to the metrics."""
    evidence = EvidenceWatch(EvidenceReader(settings.evidence), clock)
    metrics.registry.register(OperatorGauges(settings, executor, lambda: evidence.latest))
    shown = StatusPage(executor, clock, events, status, evidence)
    _add_pages(app, shown)
    _add_documents(app, shown)
    return evidence


def _add_pages(app: FastAPI, shown: StatusPage) -> None:
    @app.get("/")
    async def to_the_page() -> Response:
        return RedirectResponse("/status", 307, HEADERS)

    @app.get("/favicon.ico")
    async def no_picture() -> Response:
        """Browsers ask for one by themselves."""
        return Response(status_code=204, headers=HEADERS)

    @app.get("/status")
    async def whole_page() -> Response:
        return HTMLResponse(page(await shown.view()), headers=HEADERS)

    @app.get("/status/content")
    async def only_content() -> Response:
        return HTMLResponse(content(await shown.view()), headers=HEADERS)

    @app.get("/status/{name}")
    async def file(name: str) -> Response:
        if name not in _FILES:
            return JSONResponse({"error": {"message": "The status page has no such file."}}, 404)
        return Response((_FOLDER / name).read_bytes(), headers=HEADERS, media_type=_FILES[name])


def _add_documents(app: FastAPI, shown: StatusPage) -> None:
    @app.get("/admin/events/recent")
    async def recent() -> dict[str, list[dict[str, Any]]]:
        """The last hundred events that aren't requests, the oldest first; each with its `sentence`."""
        return {"events": [with_sentence(event) for event in shown.events.recent]}

    @app.get("/admin/evidence")
    async def evidence() -> EvidenceView:
        return await shown.evidence.refresh()
