"""HTTP server for ``/metrics``, ``/healthz`` and ``/readyz``, on a thread beside the loop.

``/healthz`` fails when the loop has not run for two minutes, so that the kubelet restarts the container. ``/readyz``
fails when the published state is missing or out of date; the body gives the reason.

One thread serves all peers, because slow peers would exhaust one thread per connection. A connection carries one
request; its head must arrive and its response must be read within seconds. At the connection limit the oldest
connection with an unfinished head is closed, so that the kubelet's probes are always answered.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agent.daemon.status import AgentStatus
from gputopo.process.daemon import bind_socket

HANG_TIMEOUT_S = 120.0  # the loop runs every five seconds; one API call may take half a minute
_CONNECTIONS = 128
_HEAD = 16 * 1024  # bytes
_HEAD_S = 5.0  # for the head of a request
_WRITE_S = 10.0  # for the peer to read the respond_to_path
_SHARED_S = 1.0  # how long a rendered exposition is reused
_BUFFERS = 64 * 1024  # bytes that the kernel holds of each connection, each way
_TEXT = "text/plain; charset=utf-8"
HealthResponse = tuple[int, str, bytes]  # HTTP status, content type, body


def respond_to_path(path: str, status: AgentStatus, exposition: Callable[[], bytes], now: float) -> HealthResponse:
    """Return the response for a path. Pure, except for the exposition of the metrics."""
    name = path.partition("?")[0]
    if name == "/metrics":
        return 200, CONTENT_TYPE_LATEST, exposition()
    if name == "/healthz":
        age = now - status.iterated_at
        return _check_response(f"the loop has not run for {age:.0f} s" if age > HANG_TIMEOUT_S else None)
    if name == "/readyz":
        return _check_response(status.unready_reason)
    return 404, _TEXT, b"not found: use /metrics, /healthz or /readyz\n"


def _check_response(problem: str | None) -> HealthResponse:
    return (200, _TEXT, b"ok\n") if problem is None else (503, _TEXT, f"{problem}\n".encode())


def respond_to_request(head: bytes, respond: Callable[[str], HealthResponse]) -> HealthResponse:
    """Return the response to a request with this head. Pure, except for ``respond``, which gets the path."""
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path, _, version = rest.partition(" ")
    if not (path and version.startswith("HTTP/1.")):
        return 400, _TEXT, b"not an HTTP/1.1 request\n"
    return respond(path) if method == "GET" else (501, _TEXT, b"the method must be GET\n")


def encode_response(response: HealthResponse) -> bytes:
    """Return the bytes of a response."""
    status, kind, body = response
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: gputopo-agent\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _HealthConnection(asyncio.Protocol):
    """One connection, for one request."""

    transport: asyncio.Transport
    deadline: asyncio.TimerHandle

    def __init__(self, respond: Callable[[str], HealthResponse], others: dict[_HealthConnection, None]) -> None:
        """``others``: all connections, the oldest first."""
        self._respond, self._others = respond, others
        self._head = b""
        self.responded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # TCP
        self.transport = transport
        if len(self._others) >= _CONNECTIONS:
            oldest = next(iter(self._others))
            next((each for each in self._others if not each.responded), oldest).cut()
        self._others[self] = None
        self.deadline = asyncio.get_running_loop().call_later(_HEAD_S, self.cut)

    def cut(self) -> None:
        """Close the connection at once."""
        self._others.pop(self, None)
        self.deadline.cancel()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.responded:
            return  # a body, or another request: only one is answered
        self._head += data
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > _HEAD:
                self.cut()
            return
        self.responded = True
        self.deadline.cancel()
        self.deadline = asyncio.get_running_loop().call_later(_WRITE_S, self.cut)
        self.transport.write(encode_response(respond_to_request(self._head, self._respond)))
        self._head = b""
        self.transport.close()  # after all data is sent

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  part of asyncio's protocol
        self._others.pop(self, None)
        self.deadline.cancel()


class _Exposition:
    """The metrics as text, rendered at most once a second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._text, self._until = b"", 0.0

    def __call__(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            self._text, self._until = generate_latest(self._registry), now + _SHARED_S
        return self._text


async def _serve(where: socket.socket, respond: Callable[[str], HealthResponse], stop: asyncio.Event) -> None:
    connections: dict[_HealthConnection, None] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _HealthConnection(respond, connections), sock=where)
    async with server:
        await stop.wait()
    for each in tuple(connections):
        each.cut()


@contextmanager
def serve_health(
    address: tuple[str, int],
    registry: CollectorRegistry,
    status: Callable[[], AgentStatus],
    clock: Callable[[], float],
) -> Iterator[tuple[str, int]]:
    """Serve within the block; yields host and port. Raises ``OSError`` where the address cannot be bound."""
    where = bind_socket(address)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # accepted sockets inherit them
        where.setsockopt(socket.SOL_SOCKET, option, _BUFFERS)
    host, port, *_ = where.getsockname()
    exposition = _Exposition(registry)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def respond(path: str) -> HealthResponse:
        return respond_to_path(path, status(), exposition, clock())

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_serve(where, respond, stop))

    thread = threading.Thread(target=run, name="health", daemon=True)
    thread.start()
    try:
        yield host, port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
