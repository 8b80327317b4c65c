"""A listener on a thread of its own, and what a test says to it over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import Any

import uvloop
from starlette.types import ASGIApp

from gputopo.process.daemon import bind_socket
from scheduler_core.extender.extender import SchedulerCalls
from scheduler_core.extender.handlers import handlers
from scheduler_core.extender.http import Clock, extender_app
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.extender.victims import NodeVictims, PreemptionResult
from scheduler_core.request.pod import Pod
from scheduler_core.runtime.calls_in_progress import CallsInProgress
from scheduler_core.runtime.http_connection import ConnectionLimits
from scheduler_core.runtime.http_server import Listener, serve_listeners
from scheduler_core.runtime.tls import Certificates

LOOPBACK = ("127.0.0.1", 0)
POD = {"metadata": {"name": "a1", "namespace": "team", "uid": "uid-1"}}


class Running:
    """A listener that serves."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self.listener = listener
        self.port = listener.port
        self._loop = loop
        self._stop = stop

    def stop(self) -> None:
        """Begin to end it."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def look_at_certificates(self) -> None:
        """Reload the certificates, as the server does every few seconds."""
        asyncio.run_coroutine_threadsafe(self.listener.reload_certificates(), self._loop).result(5)

    def connect(self, timeout: float = 10) -> socket.socket:
        """A plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def client(self, secured: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> http.client.HTTPConnection:
        """An HTTP client."""
        if secured is not None:
            return http.client.HTTPSConnection(host, self.port, timeout=10, context=secured)
        return http.client.HTTPConnection(host, self.port, timeout=10)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        client = self.client()
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()


@contextmanager
def serving(
    app: ASGIApp,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008
    certificates: Certificates | None = None,
    calls: CallsInProgress | None = None,
) -> Iterator[Running]:
    """Serve within the block."""
    listener = Listener(app, bind_socket(LOOPBACK), certificates, limits, calls)
    ready: list[Running] = []
    started = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        ready.append(Running(listener, asyncio.get_running_loop(), stop))
        await serve_listeners([listener], stop, started.set)

    thread = threading.Thread(target=lambda: uvloop.run(main()))
    thread.start()
    assert started.wait(5)
    try:
        yield ready[0]
    finally:
        ready[0].stop()
        thread.join(15)
        assert not thread.is_alive()


class Passing:
    """An extender to which every node is good."""

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
        return FilterResult(tuple(sorted(names)), {})

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> list[tuple[str, int]]:  # noqa: ARG002
        return [(name, 5) for name in sorted(names)]

    def preempt(self, pod: Pod, victims: Mapping[str, NodeVictims]) -> PreemptionResult:  # noqa: ARG002
        return PreemptionResult(victims, {}, {})


def app_of(
    extender: SchedulerCalls,
    *,
    metrics: ExtenderMetrics | None = None,
    unready: Callable[[], str | None] = lambda: None,
    most: int = 2**20,
    prefix: str = "",
    clock: Clock = time.monotonic,
) -> ASGIApp:
    """The verbs of an extender. ``clock``: of those that read the log, since calls that take long are told there."""
    return extender_app(handlers(extender, metrics or ExtenderMetrics(), clock), unready, most, prefix, clock)


def call(*names: str, **changed: Any) -> bytes:
    """The body of a call."""
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": list(names)} | changed).encode()


def read_rest(connection: socket.socket) -> bytes:
    """Return all data until the peer closes the connection."""
    with suppress(ConnectionResetError), connection.makefile("rb") as stream:
        return stream.read()
    return b""
