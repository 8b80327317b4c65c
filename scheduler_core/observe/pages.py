"""``/healthz``, ``/readyz``, ``/metrics`` and ``/report`` of the observer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp


class Pages(NamedTuple):
    """What the pages show. All is called on the loop."""

    unready: Callable[[], str | None]  # why it does not follow the cluster; None: it does
    registry: CollectorRegistry
    report: Callable[[], Mapping[str, Any]]


def pages_app(pages: Pages) -> ASGIApp:
    """The application."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        trouble = pages.unready()
        return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(pages.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def report(_: Request) -> Response:
        return Response(orjson.dumps(pages.report()), media_type="application/json")

    named = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/report": report}

    def not_found(request: Request, _: Exception) -> Response:
        return PlainTextResponse(f"there is no {request.url.path!r} here; there are {', '.join(named)}\n", 404)

    return Starlette(routes=[Route(path, page) for path, page in named.items()], exception_handlers={404: not_found})
