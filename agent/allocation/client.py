"""A client of the kubelet's PodResources service: unary gRPC calls over HTTP/2 on a unix socket.

It uses ``h2`` (pure Python) instead of grpcio, which needs 25 MiB more memory and threads of its own. The protocol:
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
from typing import Final, TypeVar
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from agent.allocation.wire import (
    AllocatableResources,
    HeldDevices,
    PinnedResources,
    PodResourcesWireError,
    decode_allocatable,
    decode_held_devices,
    decode_pinned,
)

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # fixed in the kubelet
TIMEOUT_S = 1.0  # a kubelet answers in milliseconds; a change must be published within two seconds
_MAX_BYTES = 16 * 1024 * 1024  # the kubelet's own limit (defaultPodResourcesMaxSize)
_CHUNK = 64 * 1024
_WINDOW = 1024 * 1024  # flow control: a list of 110 pods is 14 kB, so that no window update is needed
_PREFIX = struct.Struct(">?I")  # of a gRPC message: compressed, length
_EMPTY_REQUEST = _PREFIX.pack(False, 0)  # the requests have no fields
_SERVICE = "/v1.PodResourcesLister"
_UNIMPLEMENTED = "12"  # grpc-status: a kubelet before 1.20


_T = TypeVar("_T")


class PodResourcesError(Exception):
    """The kubelet was not reached or did not answer."""


class PodResourcesClient:
    """Calls one kubelet over one connection, which is kept and reopened after an error."""

    def __init__(
        self, path: Path = SOCKET, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path: Final = path
        self._timeout_s: Final = timeout_s
        self._clock: Final = clock
        self._connection: _Http2Connection | None = None

    def list_held_devices(self) -> tuple[HeldDevices, ...]:
        """Return the devices of all device plugins that containers on this node hold. Raises ``PodResourcesError``."""
        return self._call("List", decode_held_devices)

    def read_allocatable(self) -> AllocatableResources:
        """Return what the kubelet may allocate (Kubernetes 1.23). Raises ``PodResourcesError``."""
        return self._call("GetAllocatableResources", decode_allocatable)

    def list_pinned(self) -> PinnedResources:
        """Return the CPUs and memory that containers on this node hold exclusively. Raises ``PodResourcesError``."""
        return self._call("List", decode_pinned)

    def _call(self, method: str, decode: Callable[[bytes], _T]) -> _T:
        deadline = self._clock() + self._timeout_s
        previous, self._connection = self._connection, None
        body = None
        if previous is not None:
            with contextlib.suppress(PodResourcesError):  # the kubelet may have restarted: use a new connection
                body = self._ask(previous, method, deadline)
        if body is None:
            body = self._ask(self._connect(deadline), method, deadline)
        try:
            return decode(_grpc_message(body))
        except PodResourcesWireError as error:
            raise PodResourcesError(f"{self._path}: invalid response: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, deadline: float) -> _Http2Connection:
        try:
            return _Http2Connection(self._path, deadline, self._clock)
        except OSError as error:
            raise PodResourcesError(f"{self._path}: {error.strerror or error}") from error

    def _ask(self, connection: _Http2Connection, method: str, deadline: float) -> bytes:
        """Return the body of the response. The connection is kept only after a successful call."""
        try:
            body = connection.call(method, deadline)
        except (OSError, h2.exceptions.ProtocolError, PodResourcesError) as error:
            connection.close()
            raise PodResourcesError(f"{self._path}: {error}") from error
        self._connection = connection
        return body


def _grpc_message(body: bytes) -> bytes:
    """Return the message in the body of a unary response."""
    if len(body) < _PREFIX.size:
        raise PodResourcesWireError(f"{len(body)} bytes are too short for a gRPC message")
    compressed, length = _PREFIX.unpack_from(body)
    if compressed:
        raise PodResourcesWireError("it is compressed, which was not requested")
    if len(body) != _PREFIX.size + length:
        raise PodResourcesWireError(f"its header says {length} bytes, it has {len(body) - _PREFIX.size}")
    return body[_PREFIX.size :]


class _Http2Connection:
    """One HTTP/2 connection. Raises OSError, h2's ProtocolError and PodResourcesError; then it must be closed."""

    def __init__(self, path: Path, deadline: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._set_timeout(deadline)
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
        """Close the socket; the kubelet needs no GOAWAY."""
        self._socket.close()

    def call(self, method: str, deadline: float) -> bytes:
        """Return the body of the response to one call."""
        stream = self._http.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"{_SERVICE}/{method}"),
            (":authority", "localhost"),
        ]
        headers += [("te", "trailers"), ("content-type", "application/grpc")]
        self._http.send_headers(stream, headers)
        self._http.send_data(stream, _EMPTY_REQUEST, end_stream=True)
        self._flush()
        response = _Response(stream)
        while not response.complete:
            self._set_timeout(deadline)
            data = self._socket.recv(_CHUNK)
            if not data:
                raise PodResourcesError("the kubelet closed the connection")
            for event in self._http.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                response.apply_event(event)
            self._flush()
        return response.checked_body()

    def _set_timeout(self, deadline: float) -> None:
        remaining = deadline - self._clock()
        if remaining <= 0:
            raise TimeoutError("no answer before the deadline")
        self._socket.settimeout(remaining)

    def _flush(self) -> None:
        self._socket.sendall(self._http.data_to_send())


class _Response:
    """The response on one stream."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.complete = False

    def apply_event(self, event: h2.events.Event) -> None:
        """Apply an event of the connection."""
        if isinstance(event, h2.events.ConnectionTerminated):
            raise PodResourcesError(f"the kubelet closed the connection (HTTP/2 error {event.error_code})")
        if getattr(event, "stream_id", None) != self._stream:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self._headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            self._body += event.data
            if len(self._body) > _MAX_BYTES:
                raise PodResourcesError(f"the response exceeds {_MAX_BYTES >> 20} MiB")
        elif isinstance(event, h2.events.StreamReset):
            raise PodResourcesError(f"the kubelet reset the call (HTTP/2 error {event.error_code})")
        elif isinstance(event, h2.events.StreamEnded):
            self.complete = True

    def checked_body(self) -> bytes:
        """Return the body of a call that succeeded."""
        http, status = self._headers.get(":status"), self._headers.get("grpc-status")
        if http != "200":
            raise PodResourcesError(f"HTTP status {http}: the server on this socket is not a kubelet")
        if status == _UNIMPLEMENTED:
            raise PodResourcesError("the kubelet has no PodResources v1 API; Kubernetes 1.20 or newer is required")
        if status != "0":
            raise PodResourcesError(f"gRPC status {status}: {unquote(self._headers.get('grpc-message', ''))}")
        return bytes(self._body)
