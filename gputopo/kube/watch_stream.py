"""Decodes the stream of a watch: bytes -> lines -> events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import urllib3

from gputopo.kube.errors import DamagedError, UnavailableError, error_of_response
from gputopo.process.decoding import decode, decoder

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

LONGEST_LINE = 16 << 20  # bytes; etcd accepts objects of 1.5 MiB, so a longer line is not an event
_READ = 1 << 16  # bytes at most per read; a read returns the available bytes without waiting for more
_QUOTED = 80  # bytes of invalid data in a message
_UNTOLD = 500  # the status code of an ERROR without a code


class ObjectIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """The identity and version of an object: the fields of ``metadata`` that every kind has."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None  # RFC 3339, whole seconds, by the API server's clock
    namespace: str = ""

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME, or NAME of an object without namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class WatchEventType(Enum):
    """``type`` of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"  # also where an object stopped matching the selectors
    BOOKMARK = "BOOKMARK"  # no further changes up to this version; about once a minute
    ERROR = "ERROR"  # of the watch itself: ``metav1.Status``


class WatchEvent(NamedTuple):
    """One event. The object is not decoded yet: the caller decodes the fields that it uses."""

    type: WatchEventType
    identity: ObjectIdentity
    object: msgspec.Raw


class _Line(msgspec.Struct, frozen=True):
    type: WatchEventType
    object: msgspec.Raw


class _Identified(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity


class _Code(msgspec.Struct, frozen=True):
    code: int = _UNTOLD


_LINE = decoder(_Line)
_IDENTIFIED = decoder(_Identified)


def parse_identity(text: msgspec.Raw) -> ObjectIdentity:
    """Return the identity of an object. Raises ``DamagedError`` if the text is not an object."""
    try:
        return _IDENTIFIED(text).metadata
    except msgspec.DecodeError as error:
        raise DamagedError(f"this is no object ({error}): {bytes(text)[:_QUOTED]!r}") from error


def name_of(text: msgspec.Raw) -> str:
    """Return the name of an object, for people; "(unknown)" if its name cannot be decoded."""
    with suppress(DamagedError):
        return parse_identity(text).full_name
    return "(unknown)"


class WatchStream:
    """The events of one watch. One thread iterates; any thread may close it."""

    def __init__(self, call: str, response: BaseHTTPResponse) -> None:
        self._call = call
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[tuple[WatchEvent, ...]]:
        """Yield the events in batches, as they arrive.

        Ends when the server or ``close`` ends the watch, or when nothing was received for too long. Raises
        ``UnavailableError`` if the stream breaks, ``DamagedError`` if it is not a watch, and the error of an ERROR
        event: ``GoneError`` if the requested version is too old.
        """
        rest = bytearray()  # the beginning of a line that is not complete yet
        with closing(self._response):
            while chunk := self._read():
                *lines, tail = chunk.split(b"\n")
                if lines:
                    lines[0] = bytes(rest) + lines[0]
                    rest.clear()
                    yield tuple(self._event(line) for line in lines if line)
                rest += tail
                if len(rest) > LONGEST_LINE:
                    raise DamagedError(f"{self._call}: a line of more than {LONGEST_LINE} bytes is no event")

    def close(self) -> None:
        """End the watch: an iteration over it stops at once. May be called from any thread, and repeatedly."""
        self._closed = True
        with suppress(ValueError, RuntimeError, OSError):  # the response has ended already
            self._response.shutdown()

    def _read(self) -> bytes:
        """Return the received bytes, or wait for the next; b"" at the end."""
        try:
            return b"" if self._closed else self._response.read1(_READ)
        except urllib3.exceptions.ReadTimeoutError:
            return b""
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # ValueError: closed during the read
            if self._closed:
                return b""
            raise UnavailableError(f"{self._call}: the stream broke: {error}") from error

    def _event(self, text: bytes) -> WatchEvent:
        try:
            line = _LINE(text)
        except msgspec.DecodeError as error:
            raise DamagedError(f"{self._call}: this is no event ({error}): {text[:_QUOTED]!r}") from error
        if line.type is WatchEventType.ERROR:
            self._refused(bytes(line.object))
        return WatchEvent(line.type, parse_identity(line.object), line.object)

    def _refused(self, status: bytes) -> NoReturn:
        try:
            code = decode(status, _Code).code
        except msgspec.DecodeError:
            code = _UNTOLD
        raise error_of_response(self._call, code if code >= 400 else _UNTOLD, status)
