"""The event loop of a daemon that watches the cluster. The loop owns all state.

watch threads ──Batch──▶ inbox ──▶ loop: ``Daemon.apply_batch`` ◀── ``tick``, once a second
SIGTERM, SIGINT ──────────────────▶ loop: ``Daemon.stop_requested`` ──▶ stop listeners, drain, stop watches

Batches are applied for a few milliseconds at a time, large ones in parts. In between, the loop serves the requests that
have arrived. While calls are in progress, batches and ticks wait for up to ``LONGEST_WAIT_S`` in a row. If calls
never end, batches get a fifth of the time.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from scheduler_core.cache.events import Batch, WatchStatus
from scheduler_core.runtime.calls_in_progress import LONGEST_WAIT_S, POLL_S, WORK_SHARE, CallsInProgress
from scheduler_core.runtime.http_server import Listener, serve_listeners

_TICK_S = 1.0
_APPLY_S = 0.001  # then requests come first
Deliver = Callable[[Batch[Any]], None]
Split = Callable[[Batch[Any]], Iterator[Batch[Any]]]  # called on the thread of the loop when the batch is next


class WatchSet(Protocol):
    """A set of watches."""

    def start(self) -> None:
        """Start the watches."""
        ...

    def stop(self) -> None:
        """Stop the watches."""
        ...

    def status(self, now: float) -> tuple[WatchStatus, ...]:
        """Return the status of each watch. ``now``: monotonic seconds."""
        ...


class NoWatches:
    """The watches of a daemon that watches nothing, or not yet."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        """Return no status."""
        return ()


class Daemon(Protocol):
    """A service without its sockets. All methods are called on the thread of the loop."""

    @property
    def stop_requested(self) -> asyncio.Event:
        """Return the event that requests the end."""
        ...

    def running_watches(self, watches: WatchSet) -> AbstractContextManager[None]:
        """Run the watches within the context."""
        ...

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply a batch of a watch."""
        ...

    def tick(self) -> None:
        """Do the periodic work."""
        ...


async def run_daemon(
    service: Daemon,
    listeners: Sequence[Listener],
    make_watches: Callable[[Deliver], WatchSet],
    drain: Callable[[], Awaitable[None]] | None = None,
    split: Split | None = None,
    calls: CallsInProgress | None = None,
) -> None:
    """Run until ``stop_requested``, which SIGTERM and SIGINT set. Requests in progress are still answered.

    ``drain``: called at the end, while the watches still run. ``split``: divides a batch into parts, which are applied
    in their order with requests in between; None: a batch is applied at once. ``calls``: batches and ticks wait for
    these. An exception of ``apply_batch``, ``split`` or ``tick`` ends the daemon too and is raised here, because the
    state would be wrong from then on.
    """
    loop, calls = asyncio.get_running_loop(), CallsInProgress() if calls is None else calls
    errors: list[Exception] = []

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised below
            errors.append(error)
            service.stop_requested.set()

    def guarded(work: Callable[..., None], *args: object) -> None:
        with guard():
            work(*args)

    def parts_of(batch: Batch[Any]) -> Iterator[Batch[Any]]:
        with guard():
            yield from (batch,) if split is None else split(batch)

    inbox = Inbox(loop, partial(guarded, service.apply_batch), split=parts_of, calls=calls)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop_requested.set)
    ticking = asyncio.create_task(_tick_forever(partial(guarded, service.tick), calls))
    try:
        with service.running_watches(make_watches(inbox.deliver)):
            await serve_listeners(listeners, service.stop_requested)
            if drain is not None:
                await drain()
    finally:
        ticking.cancel()
    if errors:
        raise errors[0]


class Inbox:
    """Takes the batches of the watches' threads to the loop, in their order, and never occupies the loop for long."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        apply: Deliver,
        clock: Callable[[], float] = perf_counter,
        split: Split | None = None,
        calls: CallsInProgress | None = None,
    ) -> None:
        self._calls = CallsInProgress() if calls is None else calls
        self._waiting_since: float | None = None  # for calls
        self._loop, self._apply, self._clock, self._split = loop, apply, clock, split
        self._parts: Iterator[Batch[Any]] = iter(())  # of the batch in progress
        self._batches: deque[Batch[Any]] = deque()
        self._lock = threading.Lock()
        self._scheduled = False

    def deliver(self, batch: Batch[Any]) -> None:
        """Queue a batch. May be called on any thread."""
        with self._lock:
            self._batches.append(batch)
            if self._scheduled:
                return
            self._scheduled = True
        self._loop.call_soon_threadsafe(self._apply_some)

    def _apply_some(self) -> None:
        now = self._clock()
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        if waited < LONGEST_WAIT_S and self._calls.come_first:
            if self._waiting_since is None:
                self._waiting_since = now
            self._loop.call_later(POLL_S, self._apply_some)
            return
        self._waiting_since = None
        until = now + max(_APPLY_S, WORK_SHARE * min(waited, LONGEST_WAIT_S))
        with self._calls.piece_of_work():
            while (batch := self._next_batch()) is not None:
                self._apply(batch)
                if self._clock() > until:
                    break
        with self._lock:
            self._scheduled = batch is not None or bool(self._batches)
            if self._scheduled:
                self._loop.call_soon(self._apply_some)  # after the requests that have arrived

    def _next_batch(self) -> Batch[Any] | None:
        """Return the next part of the batch in progress, else of the next batch; None: nothing is left."""
        while (part := next(self._parts, None)) is None and self._batches:
            batch = self._batches.popleft()
            self._parts = iter((batch,)) if self._split is None else self._split(batch)
        return part


async def _tick_forever(tick: Callable[[], None], calls: CallsInProgress) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        for _ in range(round(LONGEST_WAIT_S / POLL_S)):
            if not calls.come_first:
                break
            await asyncio.sleep(POLL_S)
        with calls.piece_of_work():
            tick()
