"""One HTTP connection: uvicorn's, within limits.

uvicorn alone waits for slow peers without end and buffers any amount for them. Here a request must arrive within a
deadline and an answer must be read within a deadline. Where a listener, or one peer address, has no connection left, an
existing one gives way: first the oldest with an unfinished request, then the oldest idle one, then the oldest whose
answer is not read. Some connections are reserved for unfinished requests, since a probe that was just accepted is one.
So thousands of slow peers keep neither kube-scheduler nor the kubelet's probes out.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle, Transport
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_HEAD = 64 * 1024  # bytes; kube-scheduler's is 200


class ConnectionLimits(NamedTuple):
    """What a listener's connections may cost. The defaults are those of the verbs."""

    connections: int = 1000  # at once; kube-scheduler uses one or two
    per_peer: int = 1000  # of these from one address
    heads: int = 0  # of these for peers whose request is unfinished: they give way first only where they are more
    request_s: float = 10.0  # from a request's first byte to its last; kube-scheduler gives up after 5 s
    write_s: float = 30.0  # for the peer to read an answer
    keep_alive_s: int = 120  # kube-scheduler closes after 90 s; who closes first must not be us (POST is not retried)
    pipelined: int = 8  # requests that wait for the answer to an earlier one; kube-scheduler's never do
    unread: int = 2**30  # bytes of answers that peers have not read yet, of all connections together
    buffers: int | None = None  # bytes that the kernel holds of each connection, each way; None: as it likes, some MiB
    cut_busy: bool = False  # where all connections are being answered: cut the oldest one, or else refuse the new one


# Of the listener that the pod network reaches. All that it serves is read only, so a cut answer can be asked for again.
PAGES = ConnectionLimits(
    connections=256,
    per_peer=64,
    heads=128,
    request_s=5.0,
    pipelined=0,
    unread=32 * 2**20,
    buffers=64 * 2**10,
    cut_busy=True,
)


class Stage(IntEnum):
    """What a connection is at. Where connections run out, the lowest gives way first."""

    UNFINISHED = 0  # the peer has not sent a whole request
    IDLE = 1  # the peer has asked before
    UNREAD = 2  # the peer has not read the whole answer
    BUSY = 3  # a request is being answered


class TooManyError(Exception):
    """More requests wait on one connection than any client of ours sends."""


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self, config: Config, state: ServerState, limits: ConnectionLimits, closed: Callable[[str], None]
    ) -> None:
        """``closed`` hears why a connection was ended that its peer would have kept: capacity, slow, head, stuck."""
        super().__init__(config, state, app_state={})
        self._limits = limits
        self._closed = closed
        self._deadline: TimerHandle | None = None  # of a request
        self._write_deadline: TimerHandle | None = None
        self._head: int | None = None  # bytes of an unfinished head
        self._since = time.monotonic()  # since when it is at its ``Stage``
        self.peer = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept the connection, in place of another one where there are too many."""
        name = transport.get_extra_info("peername")
        self.peer = name[0] if name else ""
        if not self._make_room():
            self._closed("capacity")
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        self._await_request()

    def _await_request(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _make_room(self) -> bool:
        """Return whether one more connection is within the limits, after another one gave way where necessary."""
        limits, others = self._limits, [each for each in self.connections if isinstance(each, HttpConnection)]
        if limits.per_peer < limits.connections:
            same = [each for each in others if each.peer == self.peer]
            if len(same) >= limits.per_peer:
                return self._cut_one_of(same, limits.heads * limits.per_peer // limits.connections)
        return len(others) < limits.connections or self._cut_one_of(others, limits.heads)

    def _cut_one_of(self, others: list[HttpConnection], heads: int) -> bool:
        """Cut the oldest of the lowest stage, but no unfinished request while there are no more than ``heads``.

        Else idle peers would fill all places but one, in which a new connection is closed by the next.
        """
        asked = [each for each in others if each.stage is not Stage.UNFINISHED]
        found = asked if asked and len(others) - len(asked) <= heads else others
        first = min(found, key=lambda each: (each.stage, each.waiting_since))
        if first.stage is Stage.BUSY and not self._limits.cut_busy:
            return False
        first.cut("capacity")
        return True

    @property
    def stage(self) -> Stage:
        """What the connection is at."""
        if self.cycle is not None and not self.cycle.response_complete:
            return Stage.BUSY
        if self.cycle is None or self._deadline is not None:
            return Stage.UNFINISHED
        return Stage.UNREAD if self.transport.get_write_buffer_size() else Stage.IDLE

    @property
    def waiting_since(self) -> float:
        """When its stage began, in monotonic seconds."""
        return self._since

    def cut(self, why: str) -> None:
        """End it at once, whatever is not sent yet."""
        self._closed(why)
        self.transport.abort()
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, while the head of a request keeps within its bounds."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _HEAD:
                self._end("head")
        if self.transport.is_closing():
            if self._write_deadline is None:
                self._expect_reading()  # of what was refused
        elif self._deadline is None and self.timeout_keep_alive_task is None and self.stage is not Stage.BUSY:
            self._await_request()  # empty lines are not a request

    def on_message_begin(self) -> None:
        """The first byte of a request: it must be complete in time."""
        super().on_message_begin()
        self._head = 0
        self._since = time.monotonic()
        self._forget_deadline()
        self._deadline = self.loop.call_later(self._limits.request_s, self._end, "slow")

    def on_headers_complete(self) -> None:
        """The head is there. Raises ``TooManyError``, which the parser turns into a refusal."""
        self._head = None
        if len(self.pipeline) >= self._limits.pipelined and self._unanswered:
            raise TooManyError
        self._since = time.monotonic()
        super().on_headers_complete()

    @property
    def _unanswered(self) -> bool:
        """Whether the peer has not read the answer to an earlier request."""
        busy = self.cycle is not None and not self.cycle.response_complete
        return busy or self.transport.get_write_buffer_size() > 0

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._forget_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is handed to the transport: the peer must read it in time, and all peers together soon enough."""
        self._since = time.monotonic()
        if self.flow.write_paused or self.transport.is_closing():
            self._expect_reading()
            self._bound_unread()
        super().on_response_complete()

    def _expect_reading(self) -> None:
        """End the connection where the peer does not read in time what was written; also one that is being closed."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._write_deadline = self.loop.call_later(self._limits.write_s, self._end_unread)

    def _end_unread(self) -> None:
        self._write_deadline = None
        if self.transport.get_write_buffer_size():
            self.cut("stuck")

    def _bound_unread(self) -> None:
        """Cut answers that are not read while there are too many bytes of them: the oldest of the peer with most."""
        waiting = [each for each in self.connections if isinstance(each, HttpConnection) and each.flow.write_paused]
        unread = {each: each.transport.get_write_buffer_size() for each in waiting}
        while len(unread) > 1 and sum(unread.values()) > self._limits.unread:
            of_peer = Counter[str]()
            for each, size in unread.items():
                of_peer[each.peer] += size
            (greediest, _), *_ = of_peer.most_common(1)
            first = min((each for each in unread if each.peer == greediest), key=lambda each: each.waiting_since)
            del unread[first]
            first.cut("stuck")

    def eof_received(self) -> None:
        """The peer sends no more, so the transport closes; what is still to be sent must be read in time."""
        self._expect_reading()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget_deadline()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        if self.flow is not None:  # else it was never taken
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long. A peer that does not read its answer would keep a closing connection for ever."""
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
            self.cut(why)
