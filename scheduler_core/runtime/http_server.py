"""HTTP listeners: sockets, TLS with reloaded certificates, graceful shutdown.

All listeners run on one event loop. A ``Listener`` is uvicorn's server with ``HttpConnection``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from scheduler_core.runtime.calls_in_progress import CallsInProgress
from scheduler_core.runtime.http_connection import ConnectionLimits, HttpConnection
from scheduler_core.runtime.tls import CertificateError, Certificates, read_files, server_context
from scheduler_core.runtime.tls_handshakes import Handshakes

_BACKLOG = 512
_DRAIN_S = 5  # for requests in progress at shutdown; kube-scheduler times out after 5 s
_CERTIFICATE_POLL_S = 5.0  # the kubelet updates mounted certificates within a minute or two
_log = logging.getLogger(__name__)


class Listener(uvicorn.Server):
    """An HTTP server of an application at one address."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        certificates: Certificates | None = None,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  frozen
        calls: CallsInProgress | None = None,
    ) -> None:
        """``bound``: a bound socket; ``calls``: note the requests there. Raises ``CertificateError``."""
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns about every peer that does not speak HTTP
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                workers=1,  # not WEB_CONCURRENCY of the environment
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=limits.keep_alive_s,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )
        if limits.buffers is not None:  # inherited by accepted connections
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.buffers)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.buffers)
        self._socket = bound
        self._limits = limits
        self._calls = calls
        self._certificates = certificates
        self._contents = None if certificates is None else read_files(certificates)
        self._context = None if certificates is None else server_context(certificates)
        self._accepting: asyncio.Task[None] | None = None
        self.closed = Counter[str]()  # connections that the limits closed, by reason

    @property
    def port(self) -> int:
        """Return the port."""
        port: int = self._socket.getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002  uvicorn's signature
        """Start to listen."""
        self.servers = []
        self._socket.listen(_BACKLOG)
        if self._context is None:
            loop = asyncio.get_running_loop()
            self.servers.append(await loop.create_server(self._connection, sock=self._socket, backlog=_BACKLOG))
        else:
            handshakes = Handshakes(self._current_context, self._connection, self._note_closed)
            self._accepting = asyncio.create_task(handshakes.accept_forever(self._socket))
        self.started = True

    def _current_context(self) -> ssl.SSLContext:
        assert self._context is not None  # TLS is enabled from the start or never
        return self._context

    def _connection(self) -> HttpConnection:
        name = "" if self._certificates is None else self._certificates.client_name
        return HttpConnection(self.config, self.server_state, self._limits, self._note_closed, name, self._calls)

    def _note_closed(self, reason: str) -> None:
        self.closed[reason] += 1
        if reason == "client" and self.closed[reason] == 1 and self._certificates is not None:
            name = self._certificates.client_name
            text = f"a client has no certificate for the name {name!r}: set --client-name, or issue another certificate"
            _log.warning("client certificate", extra={"fields": {"error": text}})

    async def reload_certificates(self) -> None:
        """Use the certificates in the files from now on, if they have changed and are valid."""
        if self._certificates is None or (now := read_files(self._certificates)) == self._contents:
            return
        self._contents = now
        try:
            self._context = server_context(self._certificates)
        except CertificateError as error:
            _log.warning("certificates", extra={"fields": {"outcome": "kept the previous ones", "error": str(error)}})
            return
        _log.info("certificates", extra={"fields": {"outcome": "reloaded"}})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close existing ones after their answers."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._socket.close()  # without TLS, the server of the loop owns the socket
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals: ``run_daemon`` does."""
        yield


async def serve_listeners(
    listeners: Sequence[Listener], stop: asyncio.Event, started: Callable[[], None] | None = None
) -> None:
    """Serve until ``stop``; then shut down one listener after the other, each after its requests in progress.

    Raises the exception of a listener that ends early.
    """
    tasks = [asyncio.create_task(each.serve()) for each in listeners]
    watch = asyncio.create_task(_watch_certificates(listeners))
    stopping = asyncio.create_task(stop.wait())
    if started is not None:
        started()
    try:
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for listener, task in zip(listeners, tasks, strict=True):
            listener.should_exit = True
            await task
    finally:
        watch.cancel()
        stopping.cancel()


async def _watch_certificates(listeners: Sequence[Listener]) -> None:
    while True:
        await asyncio.sleep(_CERTIFICATE_POLL_S)
        for each in listeners:
            await each.reload_certificates()
