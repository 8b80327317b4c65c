"""The handlers of the pages of ``gputopo ui``. Each handler shows what its viewer may see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from gputopo.kube.page_reviews import Verdict
from gputopo.model import NodeTopology
from gputopo.render.svg import render_svg
from scheduler_core.runtime.shared_pages import SharedResults
from scheduler_core.runtime.turns import TooManyWaitingError, Turns
from scheduler_core.ui import reports
from scheduler_core.ui.answers import HEADERS, html_answer, missing_answer
from scheduler_core.ui.detail_pages import node_page, text_page, where_page
from scheduler_core.ui.hidden_names import without_hidden_names
from scheduler_core.ui.overview_page import PageQuery, overview_page
from scheduler_core.ui.rows_html import RowFragments, Viewer
from scheduler_core.ui.service import UiService
from scheduler_core.ui.viewers import Viewers, tenant_of
from scheduler_core.ui.where import MAX_GPUS, MAX_PODS, WhereQuery, prepare_where

_WHERE_S = 2.0  # for one search
_MAX_WORDS = 100
_QUERY = {"group", "q", "free"}  # of the page of the cluster
Answer = Callable[[Request], Awaitable[Response]]
Page = Callable[[Request, Viewer], Awaitable[Response]]
Refuse = Callable[[Request, Verdict], Response]


class UiPages:
    """The handlers of the pages."""

    def __init__(self, service: UiService, viewers: Viewers, refuse: Refuse) -> None:
        self._service, self._viewers, self._refuse = service, viewers, refuse
        self._shared = SharedResults[Response](max_results=64)
        self._turns = Turns()  # of reports and searches: they compete with the loop for the interpreter
        self._rendering = Turns()  # of pages with a query, and drawings: they are not shared between tenants
        self._fragments = RowFragments()

    def by_path(self) -> dict[str, Page]:
        """Return the handler of each page by its path."""
        return {
            "/": self.overview,
            "/node": self.node,
            "/node.svg": self.drawing,
            "/pod": self.pod,
            "/gang": self.gang,
            "/where": self.where,
            "/events": self.events,
            "/map.json": self.document,
        }

    def guarded(self, page: Page) -> Answer:
        """Return a handler that serves the page to its viewers, and refuses other requests."""

        async def answer(request: Request) -> Response:
            viewer = await self._viewers.viewer(request, self._service.namespaces)
            if not isinstance(viewer, Viewer):
                return self._refuse(request, viewer)
            try:
                return await page(request, viewer)
            except TooManyWaitingError:
                return _busy("too many of your requests wait; try again when they are answered")

        return answer

    async def overview(self, request: Request, viewer: Viewer) -> Response:
        """Return the page of the cluster, or of the part that the query selects."""
        query, viewer, found = _page_query(request), self._at_present(viewer), self._service.overview

        async def work() -> Response:
            return html_answer(overview_page(found, self._service.history, query, viewer, self._fragments.line))

        async def work_in_turn() -> Response:
            async with self._rendering.turn(tenant):
                await asyncio.sleep(0)  # a task that never waits would run before the requests of others are read
                return await work()

        if query == PageQuery():
            return await self._page(request, (query, viewer), work)
        tenant = tenant_of(request)
        return await self._page(request, (query, viewer, tenant), work_in_turn)

    async def node(self, request: Request, viewer: Viewer) -> Response:
        """Return the page of a node."""
        name = request.query_params.get("name", "")
        row = self._service.row(name)
        if row is None:
            return missing_answer(f"there is no GPU node {name!r}", viewer)
        return html_answer(node_page(row, has_drawing=self._topology(name) is not None, viewer=viewer))

    async def drawing(self, request: Request, viewer: Viewer) -> Response:
        """Return the drawing of a node's machine."""
        topology = self._topology(request.query_params.get("name", ""))
        if topology is None:
            return missing_answer("the topology of this node is unknown", viewer)
        async with self._rendering.turn(tenant_of(request)):
            svg = await asyncio.to_thread(render_svg, topology)
        policy = "default-src 'none'; style-src 'unsafe-inline'"  # an image runs no script
        return Response(svg, headers={**HEADERS, "Content-Security-Policy": policy}, media_type="image/svg+xml")

    async def pod(self, request: Request, viewer: Viewer) -> Response:
        """Return the report of ``gputopo why pod``."""
        namespace, name = _named(request)
        if not (namespace and name):
            return _unnamed("pod", viewer)
        title = f"Pod {namespace}/{name}"
        return await self._report(
            request, title, viewer, lambda seen_by: reports.pod_report(self._service, seen_by, namespace, name)
        )

    async def gang(self, request: Request, viewer: Viewer) -> Response:
        """Return the report of ``gputopo why gang``."""
        namespace, name = _named(request)
        if not (namespace and name):
            return _unnamed("gang", viewer)
        title = f"Gang {namespace}/{name}"
        return await self._report(
            request, title, viewer, lambda seen_by: reports.gang_report(self._service, seen_by, namespace, name)
        )

    async def where(self, request: Request, viewer: Viewer) -> Response:
        """Return the page about where pods would be placed now."""
        if not request.query_params:
            return html_answer(where_page(WhereQuery(), None, viewer=viewer))
        query, errors = _where_query(request)
        if errors:
            return html_answer(where_page(query, None, errors, viewer), 400)
        async with self._turns.turn(tenant_of(request)):
            viewer = self._at_present(viewer)
            search = prepare_where(self._service.view, self._service.policies, query)
            end = time.monotonic() + _WHERE_S
            # On a thread: a search takes up to two seconds.
            answer = await asyncio.to_thread(search, lambda: time.monotonic() > end)
        return html_answer(where_page(query, without_hidden_names(answer, viewer), viewer=viewer))

    async def document(self, _: Request, viewer: Viewer) -> Response:
        """Return the totals as JSON."""
        found = reports.overview_document(self._service.overview, self._at_present(viewer))
        return Response(orjson.dumps(found), headers=HEADERS, media_type="application/json")

    async def events(self, request: Request, viewer: Viewer) -> Response:  # noqa: ARG002  asked again for each message
        """Return the stream of changes."""
        user = tenant_of(request)
        if self._service.streams.is_full(user):
            return _busy("too many viewers; the page refreshes itself instead")

        async def sees_all() -> bool | None:
            now = await self._viewers.viewer(request, self._service.namespaces)
            if isinstance(now, Viewer):
                return now.namespaces is None
            # Without a review the stream goes on, but names nothing.
            return False if now.status == HTTPStatus.SERVICE_UNAVAILABLE else None

        last = request.headers.get("Last-Event-ID", "")
        number = int(last) if last.isdecimal() and len(last) < 16 else None
        headers = {**HEADERS, "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(
            self._service.streams.follow(number, sees_all, user), headers=headers, media_type="text/event-stream"
        )

    async def _page(
        self, request: Request, key: tuple[object, ...], work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return the page of this version of the overview, rendered once for all viewers who may see the same."""
        tag = f'"{hash((self._service.version, key)) & (2**64 - 1):016x}"'
        if request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers={**HEADERS, "ETag": tag})
        found = await self._shared.get((self._service.version, key), work)
        found.headers["ETag"] = tag
        return found

    async def _report(self, request: Request, title: str, viewer: Viewer, make: Callable[[Viewer], str]) -> Response:
        async with self._turns.turn(tenant_of(request)):
            try:
                # On a thread: trial plans take up to two seconds. The cluster does not change meanwhile.
                with self._service.unchanged():
                    report = await asyncio.to_thread(make, self._at_present(viewer))
                return html_answer(text_page(title, report, viewer))
            except reports.NoReportError as error:
                return missing_answer(str(error), viewer)

    def _at_present(self, viewer: Viewer) -> Viewer:
        """Return the viewer with what is hidden now: the cluster may have changed while its rights were reviewed."""
        if viewer.namespaces is None:
            return viewer
        return viewer._replace(hidden=self._service.namespaces() - viewer.namespaces)

    def _topology(self, name: str) -> NodeTopology | None:
        return reports.topology_of(self._service, name)


def _busy(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", 503, HEADERS)


def _unnamed(kind: str, viewer: Viewer) -> Response:
    words = f"specify the {kind} in the address: {kind}?namespace=NAMESPACE&name=NAME"
    return html_answer(text_page("Incomplete address", words, viewer), 400)


def _page_query(request: Request) -> PageQuery:
    found, errors = request.query_params, []
    words, free = found.get("q", ""), found.get("free", "")
    if free and _number(free, 0, MAX_GPUS) is None:
        errors.append(f"free {_quoted(free)} is not used: expected a number from 0 to {MAX_GPUS}")
    if unknown := sorted(set(found) - _QUERY):
        errors.append(f"{_quoted(unknown[0])} is not used: expected group, q or free")
    if len(words) > _MAX_WORDS:
        errors.append(f"only the first {_MAX_WORDS} characters of the search are used")
    return PageQuery(
        group=found.get("group", "")[:1000],
        words=words[:_MAX_WORDS],
        free=_number(free, 0, MAX_GPUS) or 0,
        errors=tuple(errors),
    )


def _number(words: str, least: int, most: int) -> int | None:
    found = int(words) if words.isdecimal() and len(words) < 6 else None
    return None if found is None or not least <= found <= most else found


def _quoted(words: str) -> str:
    return repr(words[:_MAX_WORDS])


def _where_query(request: Request) -> tuple[WhereQuery, list[str]]:
    found, errors, numbers = request.query_params, [], {}
    for field, most in (("pods", MAX_PODS), ("gpus", MAX_GPUS)):
        number = _number(found.get(field, ""), 1, most)
        if number is None:
            errors.append(f"{field} {_quoted(found.get(field, ''))} is invalid: expected a number from 1 to {most}")
        else:
            numbers[field] = number
    return WhereQuery(**numbers, island=found.get("island") == "1", model=found.get("model", "")[:63]), errors


def _named(request: Request) -> tuple[str, str]:
    found = request.query_params
    return found.get("namespace", "")[:253], found.get("name", "")[:253]
