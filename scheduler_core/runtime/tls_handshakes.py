"""Accepts TLS connections, with a limit on unfinished handshakes.

The server of the event loop allows any number of them, and each takes an open file: silent peers could use up all open
files. Here the oldest handshake is aborted at the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

MAX_HANDSHAKES = 256  # at the same time
_HANDSHAKE_S = 10.0
_PAUSE_S = 0.1  # after a failed accept: no open file is left
_log = logging.getLogger(__name__)


class Handshakes:
    """The handshakes of one listening socket."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        connection: Callable[[], asyncio.Protocol],
        closed: Callable[[str], None],
        max_open: int = MAX_HANDSHAKES,
    ) -> None:
        """``context`` is called for each connection, ``connection`` after its handshake, ``closed`` at the limit."""
        self._context, self._connection, self._closed, self._max_open = context, connection, closed, max_open
        self._open: dict[asyncio.Task[None], None] = {}  # oldest first

    async def accept_forever(self, listening: socket.socket) -> None:
        """Accept the connections of a socket until cancelled."""
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listening)
                except OSError as error:
                    _log.warning("accept", extra={"fields": {"error": str(error)}})
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if len(self._open) >= self._max_open:
                    self._closed("capacity")
                    self._cancel(next(iter(self._open)))
                task = asyncio.create_task(self._shake_hands(peer))
                self._open[task] = None
                task.add_done_callback(self._forget)
        finally:
            for each in tuple(self._open):
                self._cancel(each)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)

    async def _shake_hands(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._connection, peer, ssl=self._context(), ssl_handshake_timeout=_HANDSHAKE_S
            )
        except OSError:  # not TLS, no certificate of the CA, or too late
            pass
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # the transport owns the socket and closes it
            raise
