"""The pages that every program serves, ``/healthz``, ``/readyz`` and ``/metrics``, beside those of its own.

The probes are answered at once. All other pages are rendered at most once a second and shared, and few requests may
wait for them, so that whoever asks for pages does not keep the probes waiting.
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

from scheduler_core.runtime.shared_pages import Shared

JSON = "application/json"
WAITING = 32  # requests that wait for a page at once

PageHandler = Callable[[Request], Awaitable[Response]]


def program_app(
    unready: Callable[[], str | None],
    registry: CollectorRegistry,
    own: Mapping[str, PageHandler],
    unhealthy: Callable[[], str | None] = lambda: None,
) -> ASGIApp:
    """The application. ``unready`` says why the program does not do its work, or None; ``own``: pages by path.

    ``unhealthy`` says why only a new process would do it, or None. All is called on the loop.
    """
    exposition = Shared[bytes]()

    async def healthz(_: Request) -> Response:
        return _verdict(unhealthy())

    async def readyz(_: Request) -> Response:
        return _verdict(unready())

    async def exposed() -> bytes:
        return generate_latest(registry)

    async def metrics(_: Request) -> Response:
        return Response(await exposition.get("", exposed), headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = {"/healthz": healthz, "/readyz": readyz} | _limited({"/metrics": metrics, **own})

    def not_found(request: Request, _: Exception) -> Response:
        return PlainTextResponse(f"there is no {request.url.path!r} here; there are {', '.join(pages)}\n", 404)

    routes = [Route(path, page) for path, page in pages.items()]
    application = Starlette(routes=routes, exception_handlers={404: not_found})
    application.router.redirect_slashes = False  # a path with a slash too many is not there, as any other
    return application


def _limited(pages: Mapping[str, PageHandler]) -> dict[str, PageHandler]:
    """The pages, with at most ``WAITING`` requests that wait for one of them."""
    places = asyncio.Semaphore(WAITING)

    def limited(page: PageHandler) -> PageHandler:
        async def answer(request: Request) -> Response:
            if places.locked():
                headers = {"Retry-After": "1", "Connection": "close"}
                return PlainTextResponse("too many requests wait for a page; try again\n", 503, headers)
            async with places:
                return await page(request)

        return answer

    return {path: limited(page) for path, page in pages.items()}


def _verdict(trouble: str | None) -> Response:
    return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)


def json_page(document: Callable[[], Mapping[str, Any]]) -> PageHandler:
    """A page whose document is worked out on the loop, so one that takes a moment only, and encoded beside it."""
    shared = Shared[bytes]()

    async def render() -> bytes:
        return await asyncio.to_thread(orjson.dumps, document())

    async def page(_: Request) -> Response:
        return Response(await shared.get("", render), media_type=JSON)

    return page
