"""Reads the body of a request within limits: of one body, and of all that are being read at once."""

from __future__ import annotations

from typing import NamedTuple

from starlette.types import Message, Receive, Scope

_AT_ONCE = 4  # bodies of the greatest size


class Refusal(NamedTuple):
    """Why a body is not read to its end."""

    status: int
    reason: str


class Bodies:
    """For all requests of one listener."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of one body."""
        self._most = most
        self._reading = 0  # bytes held by those that are not complete

    async def read(self, scope: Scope, receive: Receive) -> bytes | Refusal | None:
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
                    return Refusal(503, "too many large bodies are being read at once; try again")
                chunks.append(chunk)
                if not message["more_body"]:
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._reading -= size

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a body may have {self._most} bytes at most; nodeCacheCapable: true makes them small")


def _announced(scope: Scope) -> int:
    """Content-Length, which the parser has checked; 0 where the body comes in chunks."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
