"""msgspec learns a type where it first meets it, and no two threads may have it learn at once.

What it knows of a Struct it keeps at the class, where other threads find it before it is complete: one that decodes by
that ends the process (SIGSEGV in ``msgspec._core``, as of 0.22). Programs that follow a cluster decode on a dozen
threads from their first moment on, and of types that share parts. So what threads decode is made known first, one type
after the other. Types of decoders that a module makes when it is imported are known before there are threads.
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")
_learning = threading.Lock()
_known: set[object] = set()


def ready(kind: type[T]) -> type[T]:
    """The same type, as which any thread may decode and convert from now on."""
    if kind not in _known:
        with _learning:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
