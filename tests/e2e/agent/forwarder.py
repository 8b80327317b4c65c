"""A TCP forwarder in front of the API server, to take the network away from an agent and give it back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Forwarder:
    """Listens on a port of its own and forwards each connection, while it is up."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._up = True
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def take_down(self) -> None:
        """Break every connection, and every one that is tried from now on."""
        self._up = False
        for each in list(self._open):
            _shut(each)

    def bring_up(self) -> None:
        """Forward again."""
        self._up = True

    def stop(self) -> None:
        """End it."""
        self.take_down()
        _shut(self._listener)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut
            while True:
                client, _ = self._listener.accept()
                if not self._up:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._copy, args=(one, other)))
                    self._threads[-1].start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        for each in (source, sink):
            _shut(each)
            self._open.discard(each)
            each.close()


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was shut before
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def forwarder(url: str) -> Iterator[Forwarder]:
    """A forwarder to ``https://<host>:<port>``."""
    host, port = url.removeprefix("https://").split(":")
    running = Forwarder(host, int(port))
    try:
        yield running
    finally:
        running.stop()
