"""The listener that kube-scheduler calls: ``POST <prefix>/filter`` and ``POST <prefix>/prioritize``.

Statuses: 200 an answer, which may carry an ``Error`` that kube-scheduler shows at the pod; 400 what came is no
extender call; 404 no such verb; 405 not a POST; 413 too large; 503 not ready, or too busy. Every other status than 200
fails the pod's attempt too; kube-scheduler then shows no more of it than the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_AT_ONCE = 4  # bodies of the greatest size


class BodyRejection(NamedTuple):
    """Why a body is not read to its end."""

    status: int
    reason: str


class BodyReader:
    """For all requests of one listener."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of one body."""
        self._most = most
        self._reading = 0  # bytes held by those that are not complete

    async def read_body(self, scope: Scope, receive: Receive) -> bytes | BodyRejection | None:
        """The body; None where the peer went away."""
        if _announced(scope) > self._most:
            return self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk: bytes = message["body"]
                size += len(chunk)
                self._reading += len(chunk)
                if size > self._most:
                    return self._too_large()
                if self._reading > _AT_ONCE * self._most:
                    return BodyRejection(503, "too many large bodies are being read at once; try again")
                chunks.append(chunk)
                if not message["more_body"]:
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._reading -= size

    def _too_large(self) -> BodyRejection:
        return BodyRejection(
            413, f"a body may have {self._most} bytes at most; nodeCacheCapable: true makes them small"
        )


def _announced(scope: Scope) -> int:
    """Content-Length, which the parser has checked; 0 where the body comes in chunks."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


class Reply(NamedTuple):
    """What a verb answers."""

    status: int
    body: bytes
    kind: str = "application/json"
    retry: bool = False  # no answer yet: what would change it may be on its way, so ask once more in a moment


# kube-scheduler and we hear of an event by watches of our own, and it asks about refused pods the moment it hears of
# one: often before we do, and then not again for minutes. So the first of such calls wait for our watch. All others of
# the same moment, however many pods wait, find it caught up.
WAIT_S = 0.02
WAITS = 5  # in a row; then
_APART_S = 0.5  # until the next: of 25 seconds one, at the most, is spent so


class Handler(Protocol):
    """What is done with a body."""

    def __call__(self, body: bytes, reading_s: float, /, *, last: bool = True) -> Reply:
        """``reading_s``: what it took to come. ``last``: it is not asked again, so this is the answer that counts."""
        ...


Clock = Callable[[], float]  # monotonic seconds


def extender_app(
    handlers: Mapping[str, Handler], not_ready_reason: Callable[[], str | None], most: int, prefix: str, clock: Clock
) -> ASGIApp:
    """The application. ``unready`` says why nothing can be answered yet; ``most``: bytes of a body."""
    bodies = BodyReader(most)
    routes = [
        Route(f"{prefix}/{name}", _Endpoint(verb, not_ready_reason, bodies, clock), methods=["POST"])
        for name, verb in handlers.items()
    ]
    there = ", ".join(f"{prefix}/{name}" for name in handlers)

    def not_found(request: Request, _: Exception) -> Response:
        return PlainTextResponse(f"there is no {request.url.path!r} here; there are {there}\n", 404)

    def not_allowed(request: Request, error: Exception) -> Response:
        headers = error.headers if isinstance(error, HTTPException) else None
        return PlainTextResponse(f"{request.method} is not how a verb is called; POST is\n", 405, headers)

    return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_allowed})


class _Endpoint:
    def __init__(self, verb: Handler, unready: Callable[[], str | None], bodies: BodyReader, clock: Clock) -> None:
        self._verb = verb
        self._unready = unready
        self._bodies = bodies
        self._clock = clock
        self._waits_from = float("-inf")  # since when waits are saved up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = self._clock()
        body = await self._bodies.read_body(scope, receive)  # a caller that is cut off while it sends sees no answer
        if body is None:
            return
        if isinstance(body, BodyRejection):
            response: Response = PlainTextResponse(f"{body.reason}\n", body.status)
        elif (trouble := self._unready()) is not None:
            # Behind a Service a kept connection would lead to an extender that lost its Lease for ever.
            response = PlainTextResponse(f"{trouble}\n", 503, {"Connection": "close"})
        else:
            now = self._clock()
            reply = self._verb(body, now - begun, last=not self._may_wait(now))
            if reply.retry:
                self._waits_from += _APART_S
                await asyncio.sleep(WAIT_S)
                reply = self._verb(body, self._clock() - begun)
            response = Response(reply.body, reply.status, media_type=reply.kind)
        await response(scope, receive, send)

    def _may_wait(self, now: float) -> bool:
        self._waits_from = max(self._waits_from, now - WAITS * _APART_S)
        return now - self._waits_from >= _APART_S
