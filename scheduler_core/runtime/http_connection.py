"""An HTTP connection of uvicorn, with limits.

uvicorn alone waits for slow peers without limit and buffers any amount for them. Here a request must arrive within a
deadline, and the peer must read the answer within a deadline. If a listener or one peer address has too many
connections, an existing one is closed: first the oldest with an unfinished request, then the oldest idle one, then the
oldest with an unread answer. Some connections are reserved for unfinished requests, because a newly accepted probe is
such a connection. So thousands of slow peers block neither kube-scheduler nor the kubelet's probes.
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

from scheduler_core.runtime.calls_in_progress import CallsInProgress
from scheduler_core.runtime.tls import has_name

_MAX_HEAD = 64 * 1024  # bytes of a request beside its body: URL, headers, sizes of chunks; kube-scheduler sends 200
_MAX_URL = 8 * 1024  # bytes; decoding takes time for each escape
_MAX_HEADERS = 100  # with trailers; each takes 200 bytes of memory, however short it is


class ConnectionLimits(NamedTuple):
    """The limits of a listener. The defaults are for the verbs."""

    connections: int = 1000  # at once; kube-scheduler uses one or two
    per_peer: int = 1000  # of these from one address
    heads: int = 0  # reserved for unfinished requests: these are closed first only if they are more
    request_s: float = 10.0  # from a request's first byte to its last; kube-scheduler gives up after 5 s
    write_s: float = 30.0  # until the peer has read the answer
    keep_alive_s: int = 120  # kube-scheduler closes after 90 s and must close first: it does not retry a POST
    pipelined: int = 8  # requests that wait for the answer to an earlier one; kube-scheduler does not pipeline
    unread: int = 2**30  # bytes of unread answers of all connections together
    buffers: int | None = None  # kernel buffer of each connection and direction, bytes; None: kernel default, some MiB
    cut_busy: bool = False  # if all connections are being answered: close the oldest one (True) or refuse the new one


# For listeners that the pod network reaches. All pages are read-only, so a client can repeat an aborted request.
PAGE_LIMITS = ConnectionLimits(
    connections=256,
    per_peer=64,
    heads=128,
    request_s=5.0,
    pipelined=0,
    unread=32 * 2**20,
    buffers=64 * 2**10,
    cut_busy=True,
)


class ConnectionStage(IntEnum):
    """The stage of a connection. At the limit, a connection of the lowest stage is closed first."""

    UNFINISHED = 0  # the peer has not sent a whole request
    IDLE = 1  # an earlier request is answered
    UNREAD = 2  # the peer has not read the whole answer
    BUSY = 3  # a request is being answered


class TooManyRequestsError(Exception):
    """Too many pipelined requests on one connection."""


class LongHeadError(Exception):
    """The URL of a request is too long, or it has too many headers."""


class HttpConnection(HttpToolsProtocol):
    """One connection of a listener."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        limits: ConnectionLimits,
        closed: Callable[[str], None],
        client_name: str = "",
        calls: CallsInProgress | None = None,
    ) -> None:
        """``closed`` is called with the reason when a connection is closed: capacity, slow, head, stuck, client.

        ``client_name``: that the client certificate must have; "": any. ``calls``: note the requests there.
        """
        super().__init__(config, state, app_state={})
        self._limits = limits
        self._closed = closed
        self._client_name = client_name
        self._calls = CallsInProgress() if calls is None else calls
        self._deadline: TimerHandle | None = None  # of a request
        self._write_deadline: TimerHandle | None = None
        self._head: int | None = None  # bytes of an incomplete request beside its body
        self._body = 0  # bytes of the body in the data that is being parsed
        self._headers = 0  # of the request
        self._has_head = False  # the headers of the request are complete
        self._since = time.monotonic()  # since when it is in its stage
        self.peer = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept the connection, and close another one if there are too many."""
        name = transport.get_extra_info("peername")
        self.peer = name[0] if name else ""
        is_client = not self._client_name or has_name(transport.get_extra_info("peercert") or {}, self._client_name)
        if not is_client or not self._is_admitted():
            self._closed("capacity" if is_client else "client")
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        self._await_request()
        self._expect_call()

    def _expect_call(self) -> None:
        if not self.transport.is_closing():
            self._calls.expect(self, self.transport.get_extra_info("socket").fileno())

    def _await_request(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _is_admitted(self) -> bool:
        """Return whether the connection is within the limits, after closing another one if necessary."""
        limits, others = self._limits, [each for each in self.connections if isinstance(each, HttpConnection)]
        if limits.per_peer < limits.connections:
            same = [each for each in others if each.peer == self.peer]
            if len(same) >= limits.per_peer:
                return self._abort_one_of(same, limits.heads * limits.per_peer // limits.connections)
        return len(others) < limits.connections or self._abort_one_of(others, limits.heads)

    def _abort_one_of(self, others: list[HttpConnection], heads: int) -> bool:
        """Abort the oldest connection of the lowest stage, but no unfinished request while these are at most ``heads``.

        Otherwise idle peers would fill all slots but one, where each new connection would be closed by the next one.
        """
        others_asked = [each for each in others if each.stage is not ConnectionStage.UNFINISHED]
        candidates = others_asked if others_asked and len(others) - len(others_asked) <= heads else others
        first = min(candidates, key=lambda each: (each.stage, each.waiting_since))
        if first.stage is ConnectionStage.BUSY and not self._limits.cut_busy:
            return False
        first.abort("capacity")
        return True

    @property
    def stage(self) -> ConnectionStage:
        """Return the stage of the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            return ConnectionStage.BUSY
        if self.cycle is None or self._deadline is not None:
            return ConnectionStage.UNFINISHED
        return ConnectionStage.UNREAD if self.transport.get_write_buffer_size() else ConnectionStage.IDLE

    @property
    def waiting_since(self) -> float:
        """Return the start of its stage, in monotonic seconds."""
        return self._since

    def abort(self, reason: str) -> None:
        """Abort the connection; unsent data is lost."""
        self._closed(reason)
        self.transport.abort()
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and close the connection if the request is too large without its body."""
        self._body = 0
        super().data_received(data)
        if self._head is not None:
            # As much as its content is allowed for the sizes of chunks, but not for what follows in later data.
            self._head = max(0, self._head + len(data) - 2 * self._body)
            if self._head > _MAX_HEAD:
                self._end("head")
        if self.transport.is_closing():
            if self._write_deadline is None:
                self._start_write_deadline()  # of a rejection
        elif self._deadline is None and self.timeout_keep_alive_task is None and self.stage is not ConnectionStage.BUSY:
            self._await_request()  # only empty lines so far

    def on_message_begin(self) -> None:
        """Start the deadline of a request at its first byte."""
        super().on_message_begin()
        self._calls.begin(self)
        self._head, self._headers, self._has_head = 0, 0, False
        self._since = time.monotonic()
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self._limits.request_s, self._end, "slow")

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL. Raises ``LongHeadError``, which the parser answers with 400."""
        if len(self.url) + len(url) > _MAX_URL:
            raise LongHeadError
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, but not a trailer: what follows a body is no header. Raises ``LongHeadError``."""
        self._headers += 1
        if self._headers > _MAX_HEADERS:
            raise LongHeadError
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Raise ``TooManyRequestsError``, which the parser answers with 400, or start the request."""
        self._has_head = True
        if len(self.pipeline) >= self._limits.pipelined and self._has_pending_answer:
            raise TooManyRequestsError
        self._since = time.monotonic()
        super().on_headers_complete()

    @property
    def _has_pending_answer(self) -> bool:
        """Return whether an earlier request is not answered, or its answer not read."""
        busy = self.cycle is not None and not self.cycle.response_complete
        return busy or self.transport.get_write_buffer_size() > 0

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the deadline of a request at its last byte."""
        self._cancel_deadline()
        self._head = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the deadline for reading the answer, and apply the limit of unread bytes."""
        self._since = time.monotonic()
        self._calls.end(self)
        self._expect_call()
        if self.flow.write_paused or self.transport.is_closing():
            self._start_write_deadline()
            self._limit_unread()
        super().on_response_complete()

    def _start_write_deadline(self) -> None:
        """Close the connection if the peer does not read the answer in time, also while it is being closed."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._write_deadline = self.loop.call_later(self._limits.write_s, self._end_unread)

    def _end_unread(self) -> None:
        self._write_deadline = None
        if self.transport.get_write_buffer_size():
            self.abort("stuck")

    def _limit_unread(self) -> None:
        """Abort connections while there are too many unread bytes: the oldest of the peer with the most bytes."""
        paused = [each for each in self.connections if isinstance(each, HttpConnection) and each.flow.write_paused]
        unread = {each: each.transport.get_write_buffer_size() for each in paused}
        while len(unread) > 1 and sum(unread.values()) > self._limits.unread:
            by_peer = Counter[str]()
            for each, size in unread.items():
                by_peer[each.peer] += size
            (peer, _), *_ = by_peer.most_common(1)
            first = min((each for each in unread if each.peer == peer), key=lambda each: each.waiting_since)
            del unread[first]
            first.abort("stuck")

    def eof_received(self) -> None:
        """Start the deadline for reading: the peer has closed its side, so the transport closes after the last byte."""
        self._start_write_deadline()
        self._calls.forget(self)
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        self._calls.end(self)
        self._calls.forget(self)
        self._cancel_deadline()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        if self.flow is not None:  # None if it was never admitted
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. A peer with an unread answer would otherwise keep it open forever."""
        if self.transport.get_write_buffer_size():
            self._end("stuck")
        else:
            super().timeout_keep_alive_handler()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, reason: str) -> None:
        if not self.transport.is_closing():
            self.abort(reason)
