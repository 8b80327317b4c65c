"""The extender's pages for operators: the common ones, ``/decisions`` and ``/explain/NAMESPACE/POD``.

Long work runs on other threads, so that it does not delay the verbs: ``/decisions`` and ``/explain`` one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import orjson
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from scheduler_core.extender.decision_log import NumberedLines
from scheduler_core.runtime.http_pages import JSON, program_app
from scheduler_core.runtime.page_access import PageAccess
from scheduler_core.runtime.paging import CONTINUE, PageBytes, fill_page
from scheduler_core.runtime.shared_pages import SharedResults

_JSON_LINES = "application/jsonl"
_MAX_DIGITS = 18  # of a number in a query

Job = Callable[[], Mapping[str, Any]]
Explain = Callable[[str, str], Job | None]  # namespace and name of a pod -> work for another thread; None: unknown pod


class PageSources(NamedTuple):
    """The functions that the pages call, all on the event loop."""

    not_ready_reason: Callable[[], str | None]  # None while calls can be answered
    registry: CollectorRegistry
    decisions: Callable[[int], NumberedLines]  # from a number on (-2: the last two), oldest first
    explain: Explain
    unhealthy: Callable[[], str | None] = lambda: None  # why a restart is needed; None: healthy
    before_metrics: Callable[[], Awaitable[None]] | None = None  # awaited before ``/metrics`` is rendered


def pages_app(pages: PageSources, access: PageAccess | None = None) -> ASGIApp:
    """Return the application. ``access``: as of ``program_app``."""
    one_at_a_time = asyncio.Semaphore(1)
    rendered, explained = SharedResults[PageBytes](), SharedResults[bytes | None]()

    async def decisions(request: Request) -> Response:
        start = _first_number(request)
        if start is None:
            return PlainTextResponse("invalid query; write ?continue=NUMBER or ?last=COUNT\n", 400)

        async def render() -> PageBytes:
            async with one_at_a_time:
                return await asyncio.to_thread(_decisions_page, pages.decisions(start))

        page = await rendered.get(start, render)
        return Response(page.body, media_type=_JSON_LINES, headers=page.headers)

    async def explain(request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["pod"]

        async def render() -> bytes | None:
            async with one_at_a_time:
                job = pages.explain(namespace, name)
                return None if job is None else await asyncio.to_thread(lambda: orjson.dumps(job()))

        body = await explained.get((namespace, name), render)
        if body is None:
            return PlainTextResponse(f"no GPU pod {name!r} in the namespace {namespace!r}\n", 404)
        return Response(body, media_type=JSON)

    own_pages = {"/decisions": decisions, "/explain/{namespace}/{pod}": explain}
    return program_app(pages.not_ready_reason, pages.registry, own_pages, pages.unhealthy, access, pages.before_metrics)


def _first_number(request: Request) -> int | None:
    """Return the number of the first requested decision, negative from the end; None for an invalid query."""
    number, last = request.query_params.get(CONTINUE, "0"), request.query_params.get("last")
    text = number if last is None else last
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return None
    return int(text) if last is None else -int(text)


def _decisions_page(lines: NumberedLines) -> PageBytes:
    with closing(lines):  # to free old snapshots takes 20 ms in all: on this thread, not later on the event loop
        page, more = fill_page(lines)
    continuation = str(page[-1][0] + 1) if more else None
    return PageBytes(b"".join(line for _, line in page), continuation)
