"""The pages of every program, ``/healthz``, ``/readyz`` and ``/metrics``, and its own pages.

Probes are answered at once. All other pages are rendered at most once a second and shared, and few requests may wait
for them, so that requests for pages do not delay the probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scheduler_core.runtime.page_access import PageAccess, is_on_loopback
from scheduler_core.runtime.shared_pages import SharedResults

JSON = "application/json"
HIDDEN_REASON = "not working; the log says why, and this page on loopback"
MAX_WAITING = 32  # requests that may wait for a page at the same time

PageHandler = Callable[[Request], Awaitable[Response]]


def program_app(
    not_ready_reason: Callable[[], str | None],
    registry: CollectorRegistry,
    own_pages: Mapping[str, PageHandler],
    unhealthy: Callable[[], str | None] = lambda: None,
    access: PageAccess | None = None,
    before_metrics: Callable[[], Awaitable[None]] | None = None,
) -> ASGIApp:
    """Return the application. ``own_pages``: by path; ``access`` authorizes their readers (None: loopback only).

    ``unhealthy``: why a restart is needed, or None. ``before_metrics``: awaited before the metrics are rendered.

    All functions are called on the event loop.
    """
    metrics_page = SharedResults[bytes]()

    def probe(reason: Callable[[], str | None]) -> PageHandler:
        async def answer(request: Request) -> Response:
            found = reason()
            # A reason may name an object of a tenant, so the pod network gets none.
            return probe_answer(found if found is None or is_on_loopback(request) else HIDDEN_REASON)

        return answer

    async def render_metrics() -> bytes:
        if before_metrics is not None:
            await before_metrics()
        return generate_latest(registry)

    async def metrics(_: Request) -> Response:
        return Response(await metrics_page.get("", render_metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = {"/healthz": probe(unhealthy), "/readyz": probe(not_ready_reason)} | _limited(
        {"/metrics": metrics, **own_pages}
    )
    pages |= {path: _authorized(pages[path], access or PageAccess()) for path in own_pages}

    def not_found(request: Request, _: Exception) -> Response:
        return PlainTextResponse(f"unknown path {request.url.path!r}; known are {', '.join(pages)}\n", 404)

    routes = [Route(path, page) for path, page in pages.items()]
    application = Starlette(routes=routes, exception_handlers={404: not_found})
    application.router.redirect_slashes = False  # a trailing slash is an unknown path too
    return application


def _authorized(page: PageHandler, access: PageAccess) -> PageHandler:
    """Return the page for readers that may read it. Refused requests do not count as waiting for it."""

    async def answer(request: Request) -> Response:
        return await access.refuse(request) or await page(request)

    return answer


def _limited(pages: Mapping[str, PageHandler]) -> dict[str, PageHandler]:
    """Return the pages with a limit of requests that wait for them."""
    slots = asyncio.Semaphore(MAX_WAITING)

    def limited(page: PageHandler) -> PageHandler:
        async def answer(request: Request) -> Response:
            if slots.locked():
                headers = {"Retry-After": "1", "Connection": "close"}
                return PlainTextResponse("too many requests are waiting; try again\n", 503, headers)
            async with slots:
                return await page(request)

        return answer

    return {path: limited(page) for path, page in pages.items()}


def probe_answer(reason: str | None, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a probe. ``reason``: why it fails; None: it does not."""
    return PlainTextResponse("ok\n" if reason is None else f"{reason}\n", 200 if reason is None else 503, headers)


def json_page(document: Callable[[], Mapping[str, Any]]) -> PageHandler:
    """Return a page of a document. The document is built on the event loop, so this must be fast."""
    shared = SharedResults[bytes]()

    async def render() -> bytes:
        return await asyncio.to_thread(orjson.dumps, document())

    async def page(_: Request) -> Response:
        return Response(await shared.get("", render), media_type=JSON)

    return page
