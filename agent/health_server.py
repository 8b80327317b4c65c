"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, on threads beside the loop.

``/healthz`` fails where the loop has not turned for a while: restart it. ``/readyz`` fails where what the agent
publishes is not what it should be; the body says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agent.status import Status
from gputopo.daemon import bound

HANGS_S = 120.0  # the loop turns every five seconds; one call to the API server may take half a minute
_TIMEOUT_S = 5.0  # for a peer that says nothing
_TEXT = "text/plain; charset=utf-8"
Answer = tuple[int, str, bytes]  # HTTP status, content type, body


def answer(path: str, status: Status, registry: CollectorRegistry, now: float) -> Answer:
    """What a path says. Pure, but for the registry's collectors."""
    name = path.partition("?")[0]
    if name == "/metrics":
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
    if name == "/healthz":
        silent = now - status.turned_at
        return _verdict(f"the loop has not turned for {silent:.0f} s" if silent > HANGS_S else None)
    if name == "/readyz":
        return _verdict(status.unready)
    return 404, _TEXT, b"there are /metrics, /healthz and /readyz\n"


def _verdict(trouble: str | None) -> Answer:
    return (200, _TEXT, b"ok\n") if trouble is None else (503, _TEXT, f"{trouble}\n".encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], respond: Callable[[str], Answer]) -> None:
        self.respond = respond
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the base class does, but as all our programs bind; and DNS is not asked for this host's name."""
        wanted = self.server_address
        self.socket.close()
        self.socket = bound((str(wanted[0]), int(wanted[1])))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gputopo-agent", ""

    def do_GET(self) -> None:
        status, kind, body = self.server.respond(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing: probes come every few seconds."""


@contextmanager
def serving(
    address: tuple[str, int],
    registry: CollectorRegistry,
    status: Callable[[], Status],
    clock: Callable[[], float],
) -> Iterator[tuple[str, int]]:
    """Serve within the block; yields host and port. Raises ``OSError`` where the address cannot be had."""
    server = _Server(address, lambda path: answer(path, status(), registry, clock()))
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        host, port, *_ = server.socket.getsockname()
        yield host, port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
