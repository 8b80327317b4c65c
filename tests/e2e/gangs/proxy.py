"""A proxy between one client and the API server that counts writes and calls back after any of them.

Writes pass one at a time, so that "after the Nth" is one state of the cluster. Leases and Events pass uncounted: they
are written by the clock, and nothing of a gang depends on them.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

from tests.e2e.servers import ControlPlane

UNCOUNTED = ("/leases", "/events")
_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding"})  # headers of one hop only
Callback = Callable[[], bool]  # called once the server has answered; whether the client is to have the answer


class Proxy:
    """Runs from its construction to ``stop``."""

    def __init__(self, plane: ControlPlane) -> None:
        self.writes: list[str] = []  # what the API server answered: "PATCH /api/v1/... 200"
        self._callbacks: dict[int, Callback] = {}
        self.closed = False  # whether nothing passes any more
        self._lock = threading.Lock()
        self._upstream = urllib3.PoolManager(ca_certs=str(plane.authority.certificate), retries=False, maxsize=64)
        self._target = plane.url
        self._answers: set[urllib3.BaseHTTPResponse] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(plane.authority.serving)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="proxy")
        self._thread.start()

    def call_after(self, number: int, callback: Callback) -> None:
        """Call back after this number of further writes."""
        with self._lock:
            self._callbacks[len(self.writes) + number] = callback

    def close(self) -> None:
        """Block all further calls: they never reach the API server."""
        self.closed = True

    def open(self) -> None:
        """Forward calls again."""
        self.closed = False

    def stop(self) -> None:
        """Stop it, and every watch through it."""
        self.closed = True
        self._server.shutdown()
        self._server.server_close()
        for each in list(self._answers):
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended
                each.shutdown()
        self._thread.join()
        self._upstream.clear()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Forward one call of the client."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        counted = handler.command != "GET" and not any(part in handler.path for part in UNCOUNTED)
        if not counted:
            self._answer(handler, body)
            return
        with self._lock:
            answer = None if self.closed else self._asked(handler, body)
            if answer is None:
                handler.close_connection = True
                return
            self.writes.append(f"{handler.command} {handler.path.partition('?')[0]} {answer.status}")
            callback = self._callbacks.pop(len(self.writes), None)
            if callback is None or callback():
                _send(handler, answer)
            else:
                handler.close_connection = True

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.closed:
            handler.close_connection = True
            return
        answer = self._asked(handler, body)
        self._answers.add(answer)
        try:
            _send(handler, answer)
        finally:
            self._answers.discard(answer)

    def _asked(self, handler: BaseHTTPRequestHandler, body: bytes) -> urllib3.BaseHTTPResponse:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in _HOP}
        url = self._target + handler.path
        return self._upstream.request(handler.command, url, body=body, headers=headers, preload_content=False)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):  # either end went away
                    proxy.pass_on(self)
                    return
                self.close_connection = True

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  as the base class calls them

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _send(handler: BaseHTTPRequestHandler, answer: urllib3.BaseHTTPResponse) -> None:
    """Forward a streamed answer."""
    handler.send_response_only(answer.status)  # date and server are those of the API server
    for name, value in answer.headers.items():
        if name.lower() not in _HOP:
            handler.send_header(name, value)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for chunk in answer.stream(decode_content=False):
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    handler.wfile.write(b"0\r\n\r\n")
    answer.release_conn()


@contextmanager
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    """Run a proxy within the context."""
    running = Proxy(plane)
    try:
        yield running
    finally:
        running.stop()
