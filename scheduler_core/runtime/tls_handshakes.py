"""Accepts TLS connections, with a bound on those that have not finished their handshake.

An event loop's own server waits for any number of them, and each is an open file: peers that connect and say nothing
would leave none for anybody else. Here the oldest gives way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

HANDSHAKES = 256  # at once
_HANDSHAKE_S = 10.0
_PAUSE_S = 0.1  # where there is no open file left
_log = logging.getLogger(__name__)


class Handshakes:
    """Those of one listening socket."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        connection: Callable[[], asyncio.Protocol],
        closed: Callable[[str], None],
        most: int = HANDSHAKES,
    ) -> None:
        """``context`` is asked for each connection, ``connection`` made once its handshake is done."""
        self._context, self._connection, self._closed, self._most = context, connection, closed, most
        self._open: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def accept_forever(self, where: socket.socket) -> None:
        """Accept what connects to that socket, until this is cancelled."""
        where.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    peer, _ = await loop.sock_accept(where)
                except OSError as error:
                    _log.warning("accept", extra={"fields": {"error": str(error)}})
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if len(self._open) >= self._most:
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
        except OSError:  # what it sent is no TLS, or no certificate of the CA, or did not come in time
            pass
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # the transport, which owns it by now, closes then
            raise
