"""The pages that every program serves, ``/healthz``, ``/readyz`` and ``/metrics``, beside those of its own."""

from __future__ import annotations

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

JSON = "application/json"

Page = Callable[[Request], Awaitable[Response]]


def site(
    unready: Callable[[], str | None],
    registry: CollectorRegistry,
    own: Mapping[str, Page],
    unhealthy: Callable[[], str | None] = lambda: None,
) -> ASGIApp:
    """The application. ``unready`` says why the program does not do its work, or None; ``own``: pages by path.

    ``unhealthy`` says why only a new process would do it, or None. All is called on the loop.
    """

    async def healthz(_: Request) -> Response:
        return _verdict(unhealthy())

    async def readyz(_: Request) -> Response:
        return _verdict(unready())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, **own}

    def not_found(request: Request, _: Exception) -> Response:
        return PlainTextResponse(f"there is no {request.url.path!r} here; there are {', '.join(pages)}\n", 404)

    routes = [Route(path, page) for path, page in pages.items()]
    application = Starlette(routes=routes, exception_handlers={404: not_found})
    application.router.redirect_slashes = False  # a path with a slash too many is not there, as any other
    return application


def _verdict(trouble: str | None) -> Response:
    return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)


def json_page(document: Callable[[], Mapping[str, Any]]) -> Page:
    """A page that is worked out on the loop, so one that takes a moment only."""

    async def page(_: Request) -> Response:
        return Response(orjson.dumps(document()), media_type=JSON)

    return page
