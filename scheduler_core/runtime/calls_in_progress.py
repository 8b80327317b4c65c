"""The calls that have arrived or are being answered, so that other work of the process waits for them a little.

Between two polls of its sockets, the loop may do several pieces of other work. So each piece first looks whether a call
has arrived on a connection. A body of 15,000 names arrives in several parts; without priority, the loop would do other
work between any two of them. The threads of watches share the interpreter with the loop: each that decodes doubles the
duration of a call.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# If calls never end, other work waits for 25 ms in a row. Events then have a quarter of that: a fifth of the time.
LONGEST_WAIT_S, WORK_SHARE = 0.025, 0.25
POLL_S = 0.001
_MOST_POLLED = 64  # connections; with more, none is polled. kube-scheduler uses one or two
_LONGEST_S = 0.050  # from the first byte of a call; then it waits like all other work, so slow clients delay nothing


class CallsInProgress:
    """The calls of a listener. For the thread of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}
        self._sockets: dict[object, int] = {}  # connections between two calls, with their file descriptors
        self._poll = select.poll()  # of these sockets
        self._waiting = 0
        self._working = False
        self._idle = threading.Event()  # cleared while there are calls, or a piece of work
        self._idle.set()

    def expect(self, connection: object, descriptor: int) -> None:
        """Note that the next call on this connection may come. ``descriptor``: of its socket."""
        self.forget(connection)
        self._sockets[connection] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, connection: object) -> None:
        """Note that no call is expected on this connection."""
        descriptor = self._sockets.pop(connection, None)
        if descriptor is not None and descriptor not in self._sockets.values():
            self._poll.unregister(descriptor)

    def begin(self, connection: object) -> None:
        """Note the first byte of a call on this connection."""
        self.forget(connection)
        self._until[connection] = self._clock() + _LONGEST_S
        self._idle.clear()

    def end(self, connection: object) -> None:
        """Note the end of the call on this connection, if it has one."""
        self._until.pop(connection, None)
        self._update_idle()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Give other work its turn within the context: a call waits for it."""
        self._waiting += 1
        self._update_idle()
        try:
            yield
        finally:
            self._waiting -= 1
            self._update_idle()

    @contextmanager
    def piece_of_work(self) -> Iterator[None]:
        """Do other work of the loop within the context. Other threads wait: a call may have arrived meanwhile."""
        self._working = True
        self._idle.clear()
        try:
            yield
        finally:
            self._working = False
            self._update_idle()

    def _update_idle(self) -> None:
        if self._working or (self._until and not self._waiting):
            self._idle.clear()
        else:
            self._idle.set()

    @property
    def come_first(self) -> bool:
        """Return whether other work of the loop should wait."""
        if self._waiting:
            return False
        if self._until:
            now = self._clock()
            self._until = {connection: until for connection, until in self._until.items() if now < until}
            self._update_idle()
        return bool(self._until) or self._has_arrived

    @property
    def _has_arrived(self) -> bool:
        """Return whether a call has arrived that the loop has not begun to read."""
        if not 0 < len(self._sockets) <= _MOST_POLLED:
            return False
        return any(events & select.POLLIN for _, events in self._poll.poll(0))

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until the loop has neither calls nor a piece of work. Return False at the timeout. For any thread."""
        return self._idle.wait(timeout_s)


class CallPause:
    """Lets other threads wait while the loop works: up to ``LONGEST_WAIT_S``, then not for ``WORK_SHARE`` of that."""

    def __init__(self, calls: CallsInProgress, clock: Callable[[], float] = time.monotonic) -> None:
        """``calls``: of the loop. ``clock``: seconds."""
        self._calls, self._clock = calls, clock
        self._thread = threading.local()  # ``works_until``: seconds by the clock

    def __call__(self) -> None:
        """Wait, if the thread has not just waited in vain."""
        if self._clock() < getattr(self._thread, "works_until", 0.0) or self._calls.wait_until_idle(LONGEST_WAIT_S):
            return
        self._thread.works_until = self._clock() + WORK_SHARE * LONGEST_WAIT_S
