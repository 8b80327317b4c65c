"""The stream of a watch response: bytes -> lines -> events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import urllib3

from gputopo.kube.errors import DamagedError, UnavailableError, error_of_response
from gputopo.process.connection_errors import no_answer_reason
from gputopo.process.decoding import decode, decoder

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

MAX_LINE_BYTES = 16 << 20  # bytes; etcd takes objects of 1.5 MiB, so a longer line is not an event
_CHUNK_BYTES = 1 << 16  # at most, per read; a read returns the bytes that have arrived
_QUOTED_BYTES = 80  # of text that cannot be decoded
_DEFAULT_CODE = 500  # the HTTP status of an ERROR without a code


class ObjectIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of ``metadata`` that identify an object and its version."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None  # RFC 3339, whole seconds, by the API server's clock
    namespace: str = ""

    @property
    def full_name(self) -> str:
        """Return NAMESPACE/NAME; NAME for an object without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class WatchEventType(Enum):
    """``type`` of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"  # also if an object no longer matches the selectors
    BOOKMARK = "BOOKMARK"  # only a newer resource version; about once a minute
    ERROR = "ERROR"  # of the watch itself: ``metav1.Status``


class WatchEvent(NamedTuple):
    """An event. The object is undecoded: each watcher decodes only the fields that it needs."""

    type: WatchEventType
    identity: ObjectIdentity
    object: msgspec.Raw


class _Line(msgspec.Struct, frozen=True):
    type: WatchEventType
    object: msgspec.Raw


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity


class _Code(msgspec.Struct, frozen=True):
    code: int = _DEFAULT_CODE


_LINE = decoder(_Line)
_OBJECT = decoder(_Object)


def parse_identity(text: msgspec.Raw) -> ObjectIdentity:
    """Return the identity of an object. Raises ``DamagedError`` if the text is not an object."""
    try:
        return _OBJECT(text).metadata
    except msgspec.DecodeError as error:
        raise DamagedError(f"not an object ({error}): {bytes(text)[:_QUOTED_BYTES]!r}") from error


def name_of(text: msgspec.Raw) -> str:
    """Return the name of an object for messages; "(unknown)" if it cannot be decoded."""
    with suppress(DamagedError):
        return parse_identity(text).full_name
    return "(unknown)"


class WatchStream:
    """The events of a watch, for one thread; any thread may close it."""

    def __init__(self, call: str, response: BaseHTTPResponse) -> None:
        self._call = call
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[tuple[WatchEvent, ...]]:
        """Yield events in batches: events that arrive together are in one batch.

        The iterator ends when the server ends the watch, when ``close`` is called, or after a read timeout. Raises
        ``UnavailableError`` if the stream breaks, ``DamagedError`` if a line is not an event, and the error of an ERROR
        event: ``GoneError`` if the resource version is too old.
        """
        rest = bytearray()  # the beginning of an incomplete line
        with closing(self._response):
            while chunk := self._read_chunk():
                *lines, tail = chunk.split(b"\n")
                if lines:
                    lines[0] = bytes(rest) + lines[0]
                    rest.clear()
                    yield tuple(self._event(line) for line in lines if line)
                rest += tail
                if len(rest) > MAX_LINE_BYTES:
                    raise DamagedError(f"{self._call}: a line of more than {MAX_LINE_BYTES} bytes is not an event")

    def close(self) -> None:
        """Close the stream: the iterator ends at once. Any thread may call this, any number of times."""
        self._closed = True
        with suppress(ValueError, RuntimeError, OSError):  # the server has ended it
            self._response.shutdown()

    def _read_chunk(self) -> bytes:
        """Return the bytes that have arrived, or wait for more; no bytes at the end."""
        try:
            return b"" if self._closed else self._response.read1(_CHUNK_BYTES)
        except urllib3.exceptions.ReadTimeoutError:
            return b""
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # ValueError: closed during the read
            if self._closed:
                return b""
            raise UnavailableError(f"{self._call}: the stream broke: {no_answer_reason(error)}") from error

    def _event(self, text: bytes) -> WatchEvent:
        try:
            line = _LINE(text)
        except msgspec.DecodeError as error:
            raise DamagedError(f"{self._call}: not a watch event ({error}): {text[:_QUOTED_BYTES]!r}") from error
        if line.type is WatchEventType.ERROR:
            self._raise_error(bytes(line.object))
        return WatchEvent(line.type, parse_identity(line.object), line.object)

    def _raise_error(self, status: bytes) -> NoReturn:
        try:
            code = decode(status, _Code).code
        except msgspec.DecodeError:
            code = _DEFAULT_CODE
        raise error_of_response(self._call, code if code >= 400 else _DEFAULT_CODE, status)
