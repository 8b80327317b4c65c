"""The extender's pages, for everybody but kube-scheduler: the usual ones, ``/decisions``, ``/explain/NAMESPACE/POD``.

What takes long runs on a thread of its own, one at a time, so that the verbs wait for nobody who looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from scheduler_core.runtime.http_pages import JSON, program_app
from scheduler_core.runtime.paging import CONTINUE, PageBytes, fill
from scheduler_core.runtime.shared_pages import Shared

_LINES = "application/jsonl"
_DIGITS = 18  # of a number in a query

Job = Callable[[], Mapping[str, Any]]
Explain = Callable[[str, str], Job | None]  # namespace and name of a pod -> what the other thread does; None: unknown
Numbered = Iterable[tuple[int, bytes]]


class PageSources(NamedTuple):
    """What the pages show. All is called on the loop; what takes long is left for another thread."""

    not_ready_reason: Callable[[], str | None]  # why nothing can be answered; None: ready
    registry: CollectorRegistry
    decisions: Callable[[int], Numbered]  # from that number on (-2: the last two), oldest first: lines of JSON
    explain: Explain
    unhealthy: Callable[[], str | None] = lambda: None  # why this process must be restarted; None: it need not be


def pages_app(pages: PageSources) -> ASGIApp:
    """The application."""
    one_at_a_time = asyncio.Semaphore(1)
    rendered, explained = Shared[PageBytes](), Shared[bytes | None]()

    async def decisions(request: Request) -> Response:
        start = _start(request)
        if start is None:
            return PlainTextResponse("write ?continue=NUMBER, or ?last=COUNT\n", 400)

        async def render() -> PageBytes:
            async with one_at_a_time:
                return await asyncio.to_thread(_decisions_page, pages.decisions(start))

        page = await rendered.get(start, render)
        return Response(page.body, media_type=_LINES, headers=page.headers)

    async def explain(request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["pod"]

        async def render() -> bytes | None:
            async with one_at_a_time:
                job = pages.explain(namespace, name)
                return None if job is None else await asyncio.to_thread(lambda: orjson.dumps(job()))

        body = await explained.get((namespace, name), render)
        if body is None:
            return PlainTextResponse(f"no GPU pod {name!r} is known in the namespace {namespace!r}\n", 404)
        return Response(body, media_type=JSON)

    own = {"/decisions": decisions, "/explain/{namespace}/{pod}": explain}
    return program_app(pages.not_ready_reason, pages.registry, own, pages.unhealthy)


def _start(request: Request) -> int | None:
    """The number of the first decision that is asked for, negative from the end; None: the query makes no sense."""
    number, last = request.query_params.get(CONTINUE, "0"), request.query_params.get("last")
    text = number if last is None else last
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    return int(text) if last is None else -int(text)


def _decisions_page(lines: Numbered) -> PageBytes:
    taken, more = fill(lines)
    following = str(taken[-1][0] + 1) if more else None
    return PageBytes(b"".join(line for _, line in taken), following)
