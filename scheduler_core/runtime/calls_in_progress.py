"""The calls that are being received or answered, so that other work of the event loop waits for them a little.

A body of 15,000 names arrives in several parts. Without priority, the loop would do other work between any two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONGEST_S = 0.050  # from the first byte of a call; then it waits like all other work, so slow clients delay nothing


class CallsInProgress:
    """The calls of a listener. For the thread of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}
        self._waiting = 0

    def begin(self, connection: object) -> None:
        """Note the first byte of a call on this connection."""
        self._until[connection] = self._clock() + _LONGEST_S

    def end(self, connection: object) -> None:
        """Note the end of the call on this connection, if it has one."""
        self._until.pop(connection, None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Give other work its turn within the context: a call waits for it."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @property
    def come_first(self) -> bool:
        """Return whether other work should wait."""
        if not self._until or self._waiting:
            return False
        now = self._clock()
        self._until = {connection: until for connection, until in self._until.items() if now < until}
        return bool(self._until)
