"""The HTTP application of the planner: ``/gangs``, and the pages that every program serves."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from scheduler_core.planner.gangs_page import GangsPageSnapshot, gangs_page, read_continuation, snapshot
from scheduler_core.planner.service import PlannerService
from scheduler_core.runtime.http_pages import JSON, program_app
from scheduler_core.runtime.page_access import PageAccess
from scheduler_core.runtime.paging import CONTINUE, PageBytes
from scheduler_core.runtime.shared_pages import SharedResults


def planner_app(service: PlannerService, registry: CollectorRegistry, access: PageAccess | None = None) -> ASGIApp:
    """Return the application. All pages of ``/gangs`` within a second come from one snapshot.

    ``access``: as of ``program_app``.
    """
    one_at_a_time = asyncio.Semaphore(1)
    snapshots, rendered = SharedResults[GangsPageSnapshot](), SharedResults[PageBytes]()

    async def take_snapshot() -> GangsPageSnapshot:
        return await asyncio.to_thread(snapshot, service.status(), time.time())

    async def gangs(request: Request) -> Response:
        text = request.query_params.get(CONTINUE)
        after = None if text is None else read_continuation(text)
        if text is not None and after is None:
            return PlainTextResponse(f"invalid {CONTINUE} {text[:80]!r}: use the value from the page before\n", 400)

        async def render() -> PageBytes:
            async with one_at_a_time:
                return await asyncio.to_thread(partial(gangs_page, await snapshots.get("", take_snapshot), after))

        page = await rendered.get(after, render)
        return Response(page.body, media_type=JSON, headers=page.headers)

    return program_app(service.not_ready_reason, registry, {"/gangs": gangs}, service.unhealthy, access)
