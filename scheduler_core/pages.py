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

from scheduler_core.site import JSON, site

_LINES = "application/jsonl"

Job = Callable[[], Mapping[str, Any]]
Explain = Callable[[str, str], Job | None]  # namespace and name of a pod -> what the other thread does; None: unknown


class Pages(NamedTuple):
    """What the pages show. All is called on the loop; what takes long is left for another thread."""

    unready: Callable[[], str | None]  # why nothing can be answered; None: ready
    registry: CollectorRegistry
    decisions: Callable[[], Iterable[bytes]]  # lines of JSON, oldest first; iterated over on the other thread
    explain: Explain
    unhealthy: Callable[[], str | None] = lambda: None  # why this process must be restarted; None: it need not be


def pages_app(pages: Pages) -> ASGIApp:
    """The application."""
    one_at_a_time = asyncio.Semaphore(1)

    async def aside(work: Callable[[], bytes], kind: str) -> Response:
        async with one_at_a_time:
            return Response(await asyncio.to_thread(work), media_type=kind)

    async def decisions(_: Request) -> Response:
        lines = pages.decisions()
        return await aside(lambda: b"".join(lines), _LINES)

    async def explain(request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["pod"]
        job = pages.explain(namespace, name)
        if job is None:
            return PlainTextResponse(f"no GPU pod {name!r} is known in the namespace {namespace!r}\n", 404)
        return await aside(lambda: orjson.dumps(job()), JSON)

    own = {"/decisions": decisions, "/explain/{namespace}/{pod}": explain}
    return site(pages.unready, pages.registry, own, pages.unhealthy)
