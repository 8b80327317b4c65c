"""The listener that kube-scheduler calls: ``POST <prefix>/filter``, ``/prioritize`` and ``/preempt``.

Statuses: 200 an answer, which may carry an ``Error`` that kube-scheduler shows at the pod; 400 not an extender call;
404 unknown path; 405 not a POST; 413 body too large; 503 not ready, or too busy. Every status but 200 fails the
scheduling attempt of the pod too; kube-scheduler then shows only the status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CONCURRENT_BODIES = 4  # bodies of the maximum size that may be read at the same time


class BodyRejection(NamedTuple):
    """The reason why a body is not read to its end."""

    status: int
    reason: str


class BodyReader:
    """Reads the bodies of all requests of one listener, within limits."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: of one body."""
        self._max_bytes = max_bytes
        self._reading = 0  # bytes of incomplete bodies

    async def read_body(self, scope: Scope, receive: Receive) -> bytes | BodyRejection | None:
        """Return the body; None if the peer disconnected."""
        if _content_length(scope) > self._max_bytes:
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
                if size > self._max_bytes:
                    return self._too_large()
                if self._reading > _CONCURRENT_BODIES * self._max_bytes:
                    return BodyRejection(503, "too many large bodies are being read; try again")
                chunks.append(chunk)
                if not message["more_body"]:
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._reading -= size

    def _too_large(self) -> BodyRejection:
        return BodyRejection(
            413, f"the body exceeds {self._max_bytes} bytes; nodeCacheCapable: true makes bodies small"
        )


def _content_length(scope: Scope) -> int:
    """Return Content-Length, which the parser has checked; 0 for a chunked body."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


class Reply(NamedTuple):
    """The answer to a call."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Handler(Protocol):
    """Answers a call of one verb."""

    def __call__(self, body: bytes, receive_s: float, /) -> Awaitable[Reply]:
        """Return the answer. ``receive_s``: how long the body took to arrive."""
        ...


Clock = Callable[[], float]  # monotonic seconds


def extender_app(
    handlers: Mapping[str, Handler],
    not_ready_reason: Callable[[], str | None],
    max_body: int,
    prefix: str,
    clock: Clock,
) -> ASGIApp:
    """Return the application. ``handlers`` by verb; ``not_ready_reason``: None while calls can be answered."""
    bodies = BodyReader(max_body)
    by_path = {f"{prefix}/{verb}": handler for verb, handler in handlers.items()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handler = by_path.get(scope["path"])
        if handler is None:
            response = _text(f"unknown path {scope['path']!r}; known are {', '.join(by_path)}", 404)
        elif scope["method"] != "POST":
            response = _text(f"{scope['method']} is not allowed; use POST", 405, {"Allow": "POST"})
        else:
            started = clock()
            body = await bodies.read_body(scope, receive)  # a peer that is rejected while it sends sees no answer
            if body is None:
                return
            if isinstance(body, BodyRejection):
                response = _text(body.reason, body.status)
            elif (reason := not_ready_reason()) is not None:
                # Behind a Service, a kept connection would lead forever to an extender that lost its Lease.
                response = _text(reason, 503, {"Connection": "close"})
            else:
                reply = await handler(body, clock() - started)
                response = Response(reply.body, reply.status, media_type=reply.content_type)
        await response(scope, receive, send)

    return app


def _text(sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, headers)
