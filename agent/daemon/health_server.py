"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, on a thread beside the loop.

``/healthz`` fails where the loop has not turned for a while: restart it. ``/readyz`` fails where what the agent
publishes is not what it should be; the body says why.

One thread serves all peers, since a thread for each is what slow peers exhaust. A connection carries one request; its
head must arrive and its answer must be read within seconds. Where there are too many connections the oldest whose head
is unfinished gives way, so the kubelet's probes are answered whatever other peers do.
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

from agent.daemon.status import Status
from gputopo.process.daemon import bound

HANGS_S = 120.0  # the loop turns every five seconds; one call to the API server may take half a minute
_CONNECTIONS = 128
_HEAD = 16 * 1024  # bytes
_HEAD_S = 5.0  # for the head of a request
_WRITE_S = 10.0  # for the peer to read the answer
_SHARED_S = 1.0  # how long an exposition is handed to all who ask
_BUFFERS = 64 * 1024  # bytes that the kernel holds of each connection, each way
_TEXT = "text/plain; charset=utf-8"
Answer = tuple[int, str, bytes]  # HTTP status, content type, body


def answer(path: str, status: Status, exposition: Callable[[], bytes], now: float) -> Answer:
    """What a path says. Pure, but for the exposition of the metrics."""
    name = path.partition("?")[0]
    if name == "/metrics":
        return 200, CONTENT_TYPE_LATEST, exposition()
    if name == "/healthz":
        silent = now - status.turned_at
        return _verdict(f"the loop has not turned for {silent:.0f} s" if silent > HANGS_S else None)
    if name == "/readyz":
        return _verdict(status.unready)
    return 404, _TEXT, b"there are /metrics, /healthz and /readyz\n"


def _verdict(trouble: str | None) -> Answer:
    return (200, _TEXT, b"ok\n") if trouble is None else (503, _TEXT, f"{trouble}\n".encode())


def answer_request(head: bytes, respond: Callable[[str], Answer]) -> Answer:
    """Return the answer to a request with this head. Pure, but for ``respond``, which is given the path."""
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path, _, version = rest.partition(" ")
    if not (path and version.startswith("HTTP/1.")):
        return 400, _TEXT, b"this is not an HTTP/1.1 request\n"
    return respond(path) if method == "GET" else (501, _TEXT, b"the method must be GET\n")


def encode_answer(found: Answer) -> bytes:
    """Return an answer with its head, as it is sent."""
    status, kind, body = found
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: gputopo-agent\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """One connection, for one request."""

    transport: asyncio.Transport
    deadline: asyncio.TimerHandle

    def __init__(self, respond: Callable[[str], Answer], others: dict[_Connection, None]) -> None:
        """``others``: all connections, the oldest first."""
        self._respond, self._others = respond, others
        self._head = b""
        self.answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # TCP
        self.transport = transport
        if len(self._others) >= _CONNECTIONS:
            oldest = next(iter(self._others))
            next((each for each in self._others if not each.answered), oldest).cut()
        self._others[self] = None
        self.deadline = asyncio.get_running_loop().call_later(_HEAD_S, self.cut)

    def cut(self) -> None:
        """End it at once."""
        self._others.pop(self, None)
        self.deadline.cancel()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.answered:
            return  # a body, or another request: one is answered
        self._head += data
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > _HEAD:
                self.cut()
            return
        self.answered = True
        self.deadline.cancel()
        self.deadline = asyncio.get_running_loop().call_later(_WRITE_S, self.cut)
        self.transport.write(encode_answer(answer_request(self._head, self._respond)))
        self._head = b""
        self.transport.close()  # once all is read

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
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


async def _serve(where: socket.socket, respond: Callable[[str], Answer], stop: asyncio.Event) -> None:
    connections: dict[_Connection, None] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(respond, connections), sock=where)
    async with server:
        await stop.wait()
    for each in tuple(connections):
        each.cut()


@contextmanager
def serving(
    address: tuple[str, int],
    registry: CollectorRegistry,
    status: Callable[[], Status],
    clock: Callable[[], float],
) -> Iterator[tuple[str, int]]:
    """Serve within the block; yields host and port. Raises ``OSError`` where the address cannot be had."""
    where = bound(address)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # inherited by what is accepted
        where.setsockopt(socket.SOL_SOCKET, option, _BUFFERS)
    host, port, *_ = where.getsockname()
    exposition = _Exposition(registry)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def respond(path: str) -> Answer:
        return answer(path, status(), exposition, clock())

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
