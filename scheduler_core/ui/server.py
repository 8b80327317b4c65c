"""The HTTP pages of ``gputopo ui``.

Pages are read-only and contain names from the cluster, so: no inline script, no other origin, no frame. On loopback
only requests for a loopback host name are answered: a web site that the viewer visits could otherwise read the pages
through a name of its own that resolves to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from importlib.resources import files

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gputopo.render.svg import render_svg
from scheduler_core.runtime.http_connection import ConnectionLimits
from scheduler_core.runtime.http_pages import probe_answer
from scheduler_core.runtime.shared_pages import SharedResults
from scheduler_core.ui import reports
from scheduler_core.ui.detail_pages import node_page, text_page, where_page
from scheduler_core.ui.overview_page import PageQuery, overview_page
from scheduler_core.ui.service import UiService
from scheduler_core.ui.streams import MAX_STREAMS
from scheduler_core.ui.where import MAX_GPUS, MAX_PODS, WhereQuery, where

LIMITS = ConnectionLimits(connections=1000, per_peer=1000, heads=200, request_s=10.0, pipelined=0, cut_busy=True)
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WHERE_S = 2.0  # for one search
_MAX_WORDS = 100
_MAX_REPORTS = 4  # reports and searches at a time
Page = Callable[[Request], Awaitable[Response]]


def ui_app(service: UiService, *, loopback_only: bool) -> ASGIApp:
    """Return the application. ``loopback_only``: requests with another host name are refused."""
    pages = UiPages(service)
    routes: dict[str, Page] = {
        "/": pages.overview,
        "/node": pages.node,
        "/node.svg": pages.drawing,
        "/pod": pages.pod,
        "/gang": pages.gang,
        "/where": pages.where,
        "/events": pages.events,
        "/map.json": pages.document,
        "/ui.css": _asset("ui.css", "text/css"),
        "/ui.js": _asset("ui.js", "text/javascript"),
        "/icon.svg": _asset("icon.svg", "image/svg+xml"),
        "/healthz": pages.health,
        "/readyz": pages.ready,
    }
    checked = [Route(path, _checked(page) if loopback_only else page) for path, page in routes.items()]
    application = Starlette(routes=checked, exception_handlers={404: _not_found})
    application.router.redirect_slashes = False
    return application


class UiPages:
    """The handlers of the pages."""

    def __init__(self, service: UiService) -> None:
        self._service = service
        self._shared = SharedResults[Response](max_results=64)
        self._slots = asyncio.Semaphore(_MAX_REPORTS)

    async def overview(self, request: Request) -> Response:
        """Return the page of the cluster, or of the part that the query selects."""
        query = _page_query(request)

        async def work() -> Response:
            service = self._service
            return _html(overview_page(service.overview, service.history, query))

        return await self._page(request, query, work)

    async def node(self, request: Request) -> Response:
        """Return the page of a node."""
        name = request.query_params.get("name", "")
        row = self._service.row(name)
        if row is None:
            return _missing(f"there is no GPU node {name!r}")
        return _html(node_page(row, has_drawing=self._topology(name) is not None))

    async def drawing(self, request: Request) -> Response:
        """Return the drawing of a node's machine."""
        topology = self._topology(request.query_params.get("name", ""))
        if topology is None:
            return _missing("the topology of this node is unknown")
        svg = await asyncio.to_thread(render_svg, topology)
        policy = "default-src 'none'; style-src 'unsafe-inline'"  # an image runs no script
        return Response(svg, headers={**_HEADERS, "Content-Security-Policy": policy}, media_type="image/svg+xml")

    async def pod(self, request: Request) -> Response:
        """What ``gputopo why pod`` says."""
        namespace, name = _named(request)
        return await self._report(f"Pod {namespace}/{name}", lambda: reports.pod_report(self._service, namespace, name))

    async def gang(self, request: Request) -> Response:
        """What ``gputopo why gang`` says."""
        namespace, name = _named(request)
        return await self._report(
            f"Gang {namespace}/{name}", lambda: reports.gang_report(self._service, namespace, name)
        )

    async def where(self, request: Request) -> Response:
        """Where pods would be placed now."""
        if not request.query_params:
            return _html(where_page(WhereQuery(), None))
        query, errors = _where_query(request)
        if errors:
            return _html(where_page(query, None, errors), 400)
        end = time.monotonic() + _WHERE_S
        async with self._slots:
            answer = where(self._service.view, self._service.policies, query, lambda: time.monotonic() > end)
        return _html(where_page(query, answer))

    async def document(self, _: Request) -> Response:
        """Return the totals as JSON."""
        found = self._service.overview
        return Response(orjson.dumps(reports.overview_document(found)), headers=_HEADERS, media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Return the stream of changes."""
        if self._service.streams.open >= MAX_STREAMS:
            return PlainTextResponse("too many viewers; the page refreshes itself instead\n", 503, _HEADERS)
        last = request.headers.get("Last-Event-ID", "")
        events = self._service.streams.follow(int(last) if last.isdecimal() and len(last) < 16 else None, sees_all=True)
        headers = {**_HEADERS, "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def health(self, _: Request) -> Response:
        """Whether this process works."""
        return probe_answer(self._service.unhealthy(), _HEADERS)

    async def ready(self, _: Request) -> Response:
        """Whether the cluster is shown."""
        return probe_answer(self._service.not_ready_reason(), _HEADERS)

    async def _page(
        self, request: Request, key: tuple[object, ...], work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return the page of this version of the overview, rendered once for all viewers."""
        tag = '"' + sha256(repr((self._service.version, key)).encode()).hexdigest()[:16] + '"'
        if request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers={**_HEADERS, "ETag": tag})
        found = await self._shared.get((self._service.version, key), work)
        found.headers["ETag"] = tag
        return found

    async def _report(self, title: str, make: Callable[[], str]) -> Response:
        async with self._slots:
            try:
                return _html(text_page(title, make()))
            except reports.NoReportError as error:
                return _missing(str(error))

    def _topology(self, name: str) -> reports.Topology | None:
        return reports.topology_of(self._service, name)


def _checked(page: Page) -> Page:
    async def answer(request: Request) -> Response:
        host = request.headers.get("Host", "")
        if host.rpartition(":")[0] not in _LOOPBACK and host not in _LOOPBACK:
            return PlainTextResponse(f"unknown host {host!r}: open http://localhost instead\n", 421, _HEADERS)
        return await page(request)

    return answer


def _page_query(request: Request) -> PageQuery:
    found = request.query_params
    free = found.get("free", "")
    return PageQuery(
        group=found.get("group", "")[:1000],
        words=found.get("q", "")[:_MAX_WORDS],
        free=min(MAX_GPUS, int(free)) if free.isdecimal() and len(free) < 6 else 0,
    )


def _where_query(request: Request) -> tuple[WhereQuery, list[str]]:
    found, errors, numbers = request.query_params, [], {}
    for field, most in (("pods", MAX_PODS), ("gpus", MAX_GPUS)):
        words = found.get(field, "")
        if words.isdecimal() and len(words) < 6 and 1 <= int(words) <= most:
            numbers[field] = int(words)
        else:
            errors.append(f"{field} {words[:_MAX_WORDS]!r} is invalid: expected a number from 1 to {most}")
    return WhereQuery(**numbers, island=found.get("island") == "1", model=found.get("model", "")[:63]), errors


def _named(request: Request) -> tuple[str, str]:
    found = request.query_params
    return found.get("namespace", "")[:253], found.get("name", "")[:253]


def _html(page: str, status: int = 200) -> Response:
    return Response(page, status, headers=_HEADERS, media_type="text/html; charset=utf-8")


def _missing(words: str) -> Response:
    return _html(text_page("Not found", words), 404)


def _not_found(request: Request, _: Exception) -> Response:
    return _missing(f"unknown page {request.url.path!r}")


def _asset(name: str, media_type: str) -> Page:
    content = files("scheduler_core.ui").joinpath("assets", name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=f"{media_type}; charset=utf-8")

    return answer


def style_sheet() -> str:
    """Return the style sheet."""
    return files("scheduler_core.ui").joinpath("assets", "ui.css").read_text(encoding="utf-8")
