"""Decoding of untrusted JSON: every failure is a ``msgspec.DecodeError``.

msgspec counts nesting against Python's recursion limit, also in fields that it skips, and raises ``RecursionError``:
every user who may create Pods can nest ``metadata.managedFields`` that deep. So text that fails is repaired
(``gputopo.process.json_repair``) and decoded again. Text that does not fail has no extra cost.

msgspec inspects a type on first use, and two threads must not trigger that at the same time. It stores the type
information of a Struct on the class, where other threads see it before it is complete: a thread that decodes with it
ends the process (SIGSEGV in ``msgspec._core``, as of 0.22). Daemons decode on a dozen threads from the start, and their
types share fields. So each type is inspected under a lock before threads decode it. Decoders that a module creates at
import exist before the threads do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from gputopo.process.json_repair import repair_json

T = TypeVar("T")
Text = bytes | bytearray | str | msgspec.Raw
_lock = threading.Lock()
_decoders: dict[object, Callable[[Text], Any]] = {}
_plain_decoders: dict[object, Callable[[Text], Any]] = {}


def learn_type(kind: type[T]) -> type[T]:
    """Have msgspec inspect a type, so that any thread may use it. Return the type."""
    decoder(kind)
    return kind


def decoder(kind: type[T]) -> Callable[[Text], T]:
    """Return a function that decodes JSON into a type, on any thread. It raises only ``msgspec.DecodeError``."""
    decode_kind = _decoders.get(kind)
    if decode_kind is None:
        with _lock:
            plain = _plain_decoders[kind] = msgspec.json.Decoder(kind).decode
            decode_kind = _decoders[kind] = _with_repair(plain)
    return cast("Callable[[Text], T]", decode_kind)


def decoder_without_repair(kind: type[T]) -> Callable[[Text], T]:
    """Return a function as ``decoder`` does, for a first attempt. It raises ``ValueError`` or ``RecursionError``."""
    decoder(kind)
    return cast("Callable[[Text], T]", _plain_decoders[kind])


def decode(text: Text, kind: type[T]) -> T:
    """Decode JSON into a type. Raises only ``msgspec.DecodeError``."""
    return decoder(kind)(text)


def convert(value: Any, kind: type[T]) -> T:
    """Convert dicts and lists into a type. Raises only ``msgspec.ValidationError``."""
    try:
        return msgspec.convert(value, learn_type(kind))
    except RecursionError as error:
        raise msgspec.ValidationError(f"nested too deep ({error})") from error


def _with_repair(plain: Callable[[Text], T]) -> Callable[[Text], T]:
    def decode_repaired(text: Text, cause: Exception) -> T:
        try:
            return plain(repair_json(text.encode() if isinstance(text, str) else bytes(text)))
        except msgspec.DecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from cause

    def decode_any(text: Text) -> T:
        try:
            return plain(text)
        except msgspec.ValidationError:
            raise
        except (ValueError, RecursionError) as error:  # ValueError includes DecodeError and UnicodeError
            return decode_repaired(text, error)

    return decode_any
