"""Decodes what comes from outside: whatever cannot be decoded is one ``msgspec.DecodeError``, and nothing else.

msgspec counts nesting against Python's recursion limit, also in what it skips, and raises ``RecursionError``: anybody
who may create a Pod can nest its ``metadata.managedFields`` that deep. So what fails is decoded again without what
nests too deep (``gputopo.process.json_repair``). Only text that fails pays for that.

msgspec learns a type where it first meets it, and no two threads may have it learn at once. What it knows of a Struct
it keeps at the class, where other threads find it before it is complete: one that decodes by that ends the process
(SIGSEGV in ``msgspec._core``, as of 0.22). Programs that follow a cluster decode on a dozen threads from their first
moment on, and of types that share parts. So what threads decode is made known first, one type after the other. Types of
decoders that a module makes when it is imported are known before there are threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from gputopo.process.json_repair import repaired

T = TypeVar("T")
Text = bytes | str | msgspec.Raw
_learning = threading.Lock()
_known: dict[object, Callable[[Text], Any]] = {}


def learn_type(kind: type[T]) -> type[T]:
    """Return the same type, as which any thread may decode and convert from now on."""
    decoder(kind)
    return kind


def decoder(kind: type[T]) -> Callable[[Text], T]:
    """Return what decodes JSON as that type, on any thread. It raises ``msgspec.DecodeError``, and nothing else."""
    found = _known.get(kind)
    if found is None:
        with _learning:
            found = _known[kind] = _tolerant(msgspec.json.Decoder(kind).decode)
    return cast("Callable[[Text], T]", found)


def decode(text: Text, kind: type[T]) -> T:
    """Return JSON decoded as that type. Raises ``msgspec.DecodeError``, and nothing else."""
    return decoder(kind)(text)


def convert(value: Any, kind: type[T]) -> T:
    """Return a value of dicts and lists as that type. Raises ``msgspec.ValidationError``, and nothing else."""
    try:
        return msgspec.convert(value, learn_type(kind))
    except RecursionError as error:
        raise msgspec.ValidationError(f"it nests too deep ({error})") from error


def _tolerant(plain: Callable[[Text], T]) -> Callable[[Text], T]:
    def decode_repaired(text: Text, why: Exception) -> T:
        try:
            return plain(repaired(text.encode() if isinstance(text, str) else bytes(text)))
        except msgspec.DecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from why

    def decode_any(text: Text) -> T:
        try:
            return plain(text)
        except msgspec.ValidationError:
            raise
        except (ValueError, RecursionError) as error:  # of ValueError: msgspec.DecodeError, UnicodeError
            return decode_repaired(text, error)

    return decode_any
