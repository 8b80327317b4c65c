"""A real HTTP server on loopback that answers as a test says and remembers what it was asked.

For what a real API server cannot be made to do on demand; ``tests/e2e`` has the real one.
"""

from __future__ import annotations

import json
import queue
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import yaml


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: Any


class Answer(NamedTuple):
    """An answer: a string or bytes are sent unchanged, a ``Stream`` piece by piece, any other value as JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012  never written to


class Stream:
    """The body of an answer that a test writes piece by piece, as a watch is answered."""

    def __init__(self, *lines: Any) -> None:
        self._pieces: queue.SimpleQueue[bytes | type[OSError] | None] = queue.SimpleQueue()
        if lines:
            self.send(*lines)

    def send(self, *lines: Any) -> None:
        """Lines of JSON, together in one piece; bytes are sent as they are."""
        self._pieces.put(b"".join(x if isinstance(x, bytes) else json.dumps(x).encode() + b"\n" for x in lines))

    def end(self) -> None:
        """End it in good order."""
        self._pieces.put(None)

    def cut(self) -> None:
        """Break the connection."""
        self._pieces.put(OSError)

    def pieces(self) -> Iterator[bytes]:
        """Raises ``OSError`` where it is cut."""
        while (piece := self._pieces.get()) is not None:
            if not isinstance(piece, bytes):
                raise piece
            yield piece


class _Server(ThreadingHTTPServer):
    """A server that prints nothing about clients that close early: output of the code under test is compared."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, except of a closed connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ApiServer:
    """Answers each request with what ``answer`` makes of it."""

    def __init__(self, answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> None:
        asked: list[Asked] = []

        connections: set[socket.socket] = set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def finish(self) -> None:
                connections.discard(self.connection)
                super().finish()

            def handle_one(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length", "0"))
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked.append(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
                made = answer(asked[-1])
                if isinstance(made.body, Stream):
                    self.stream(made.body)
                    return
                text = made.body if isinstance(made.body, str | bytes) else json.dumps(made.body)
                content = text.encode() if isinstance(text, str) else text
                self.send_response(made.status)
                for name, value in made.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def stream(self, body: Stream) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with suppress(OSError):  # it is cut, here or by the client
                    for piece in body.pieces():
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815  http.server's names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.asked = asked
        self._connections = connections
        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, path: Path, token: str = "s3cret") -> str:
        """Write a kubeconfig that leads here."""
        path.write_text(yaml.safe_dump(kubeconfig(self.url, token)))
        return str(path)

    def serve(self) -> None:
        """Answer until ``stop``."""
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        """End it, and the connections that clients keep open: ``server_close`` waits for their threads."""
        self._server.shutdown()
        for each in list(self._connections):
            with suppress(OSError):  # the client has closed it
                each.shutdown(socket.SHUT_RDWR)
        self._server.server_close()


def kubeconfig(url: str, token: str) -> dict[str, Any]:
    """A kubeconfig of one cluster, one user, one context of the name "here"."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }


@contextmanager
def api_server(answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> Iterator[ApiServer]:
    """A running server."""
    server = ApiServer(answer, tls)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
