"""A client of the kubelet's PodResources service: gRPC's one unary call over HTTP/2 on a unix socket.

``h2`` (pure Python) instead of grpcio: 25 MiB of resident memory less, and no threads of its own. The protocol:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md

    PodResourcesError(Exception)    the kubelet was not reached or did not answer; the text says why
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from agent.allocation.wire import Held, WireError, held_devices

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # the kubelet's only place for it
TIMEOUT_S = 1.0  # a kubelet answers in milliseconds; a change must be published within two seconds
_MAX_BYTES = 16 * 1024 * 1024  # what the kubelet itself allows (defaultPodResourcesMaxSize)
_CHUNK = 64 * 1024
_WINDOW = 1024 * 1024  # flow control: a list of 110 pods is 14 kB, so that nothing ever waits for an update
_PREFIX = struct.Struct(">?I")  # of a gRPC message: compressed, length
_EMPTY_REQUEST = _PREFIX.pack(False, 0)  # ListPodResourcesRequest has no fields
_PATH = "/v1.PodResourcesLister/List"
_UNIMPLEMENTED = "12"  # grpc-status: a kubelet before 1.20


class PodResourcesError(Exception):
    """The kubelet was not reached or did not answer."""


class PodResources:
    """Asks one kubelet, over one connection that is kept and renewed when it broke."""

    def __init__(
        self, path: Path = SOCKET, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path: Final = path
        self._timeout_s: Final = timeout_s
        self._clock: Final = clock
        self._connection: _Connection | None = None

    def held(self) -> tuple[Held, ...]:
        """What every container on this node holds of any device plugin. Raises ``PodResourcesError``."""
        deadline = self._clock() + self._timeout_s
        kept, self._connection = self._connection, None
        body = None
        if kept is not None:
            with contextlib.suppress(PodResourcesError):  # the kubelet was restarted since: a new connection tells
                body = self._ask(kept, deadline)
        if body is None:
            body = self._ask(self._connect(deadline), deadline)
        try:
            return held_devices(_message(body))
        except WireError as error:
            raise PodResourcesError(f"{self._path}: the answer is damaged: {error}") from error

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, deadline: float) -> _Connection:
        try:
            return _Connection(self._path, deadline, self._clock)
        except OSError as error:
            raise PodResourcesError(f"{self._path}: {error.strerror or error}") from error

    def _ask(self, connection: _Connection, deadline: float) -> bytes:
        """The body of the answer. The connection is kept only where it is still good."""
        try:
            body = connection.call(deadline)
        except (OSError, h2.exceptions.ProtocolError, PodResourcesError) as error:
            connection.close()
            raise PodResourcesError(f"{self._path}: {error}") from error
        self._connection = connection
        return body


def _message(body: bytes) -> bytes:
    """The one message in the body of a unary answer."""
    if len(body) < _PREFIX.size:
        raise WireError(f"{len(body)} bytes are no gRPC message")
    compressed, length = _PREFIX.unpack_from(body)
    if compressed:
        raise WireError("it is compressed, which was not asked for")
    if len(body) != _PREFIX.size + length:
        raise WireError(f"it announces {length} bytes and has {len(body) - _PREFIX.size}")
    return body[_PREFIX.size :]


class _Connection:
    """One HTTP/2 connection. Raises OSError, h2's ProtocolError and PodResourcesError; then it is of no more use."""

    def __init__(self, path: Path, deadline: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._allow(deadline)
            self._socket.connect(str(path))
            config = h2.config.H2Configuration(header_encoding="utf-8")
            self._http = h2.connection.H2Connection(config)
            self._http.initiate_connection()
            self._http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW})
            self._http.increment_flow_control_window(_WINDOW)
            self._flush()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket; the kubelet needs no farewell."""
        self._socket.close()

    def call(self, deadline: float) -> bytes:
        """The body of one ``List``."""
        stream = self._http.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", _PATH), (":authority", "localhost")]
        headers += [("te", "trailers"), ("content-type", "application/grpc")]
        self._http.send_headers(stream, headers)
        self._http.send_data(stream, _EMPTY_REQUEST, end_stream=True)
        self._flush()
        answer = _Answer(stream)
        while not answer.complete:
            self._allow(deadline)
            data = self._socket.recv(_CHUNK)
            if not data:
                raise PodResourcesError("the kubelet closed the connection")
            for event in self._http.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                answer.take(event)
            self._flush()
        return answer.checked()

    def _allow(self, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left)

    def _flush(self) -> None:
        self._socket.sendall(self._http.data_to_send())


class _Answer:
    """What came back on one stream."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.complete = False

    def take(self, event: h2.events.Event) -> None:
        """Note an event of the connection."""
        if isinstance(event, h2.events.ConnectionTerminated):
            raise PodResourcesError(f"the kubelet ends the connection (HTTP/2 error {event.error_code})")
        if getattr(event, "stream_id", None) != self._stream:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self._headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            self._body += event.data
            if len(self._body) > _MAX_BYTES:
                raise PodResourcesError(f"the answer is longer than {_MAX_BYTES} bytes")
        elif isinstance(event, h2.events.StreamReset):
            raise PodResourcesError(f"the kubelet reset the call (HTTP/2 error {event.error_code})")
        elif isinstance(event, h2.events.StreamEnded):
            self.complete = True

    def checked(self) -> bytes:
        """The body of a call that succeeded."""
        http, status = self._headers.get(":status"), self._headers.get("grpc-status")
        if http != "200":
            raise PodResourcesError(f"HTTP status {http}: whoever listens there is no kubelet")
        if status == _UNIMPLEMENTED:
            raise PodResourcesError("the kubelet has no PodResources v1 API; it came with Kubernetes 1.20")
        if status != "0":
            raise PodResourcesError(f"gRPC status {status}: {unquote(self._headers.get('grpc-message', ''))}")
        return bytes(self._body)
