"""One HTTP connection of kube-scheduler's, or of whoever else found the port: uvicorn's, held within limits.

uvicorn reads from anybody, as slowly and as much as they like. Here a request must come whole within a time, its head
and the requests that wait behind it are bounded, and where connections run out the idlest gives way: one that never
asked anything first. So a thousand idle peers do not lock kube-scheduler out.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_HEAD = 64 * 1024  # bytes; kube-scheduler's is 200
_PIPELINED = 8  # requests that wait for the answer to an earlier one; kube-scheduler's never do


class Limits(NamedTuple):
    """What a listener's connections may cost."""

    connections: int = 1000  # at once; kube-scheduler uses one or two
    request_s: float = 10.0  # from a request's first byte to its last; kube-scheduler gives up after 5 s
    keep_alive_s: int = 120  # kube-scheduler closes after 90 s; who closes first must not be us (POST is not retried)


class TooManyError(Exception):
    """More requests wait on one connection than any client of ours sends."""


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Config, state: ServerState, limits: Limits, closed: Callable[[str], None]) -> None:
        """``closed`` hears why a connection was ended that its peer would have kept: capacity, slow, head, stuck."""
        super().__init__(config, state, app_state={})
        self._limits = limits
        self._closed = closed
        self._deadline: TimerHandle | None = None
        self._head: int | None = None  # bytes of an unfinished head
        self.heard_at = time.monotonic()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take the connection, in place of another one where there are too many."""
        if len(self.connections) >= self._limits.connections and not self._make_room():
            self._closed("capacity")
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        self._await_request()

    def _await_request(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _make_room(self) -> bool:
        idle = [each for each in self.connections if isinstance(each, Connection) and each.idle]
        if not idle:
            return False
        idlest = min(idle, key=lambda each: (each.cycle is not None, each.heard_at))
        self._closed("capacity")
        idlest.transport.abort()
        self.connections.discard(idlest)
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing is being asked on it."""
        return self._deadline is None and (self.cycle is None or self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, while the head of a request keeps within its bounds."""
        self.heard_at = time.monotonic()
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _HEAD:
                self._end("head")
        elif self.idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._await_request()  # empty lines are not a request

    def on_message_begin(self) -> None:
        """The first byte of a request: it must be complete in time."""
        super().on_message_begin()
        self._head = 0
        self._forget_deadline()
        self._deadline = self.loop.call_later(self._limits.request_s, self._end, "slow")

    def on_headers_complete(self) -> None:
        """The head is there. Raises ``TooManyError``, which the parser turns into a refusal."""
        self._head = None
        if len(self.pipeline) >= _PIPELINED:
            raise TooManyError
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._forget_deadline()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget_deadline()
        if self.flow is not None:  # else it was never taken
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long. A peer that does not take its answer would keep a closing connection for ever."""
        if self.transport.get_write_buffer_size():
            self._end("stuck")
        else:
            super().timeout_keep_alive_handler()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, why: str) -> None:
        if not self.transport.is_closing():
            self._closed(why)
            self.transport.abort()
