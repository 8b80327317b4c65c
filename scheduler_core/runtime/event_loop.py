"""A program that follows the cluster, at work: watches tell what there is, and one event loop owns all that changes.

watch threads ──Batch──▶ loop: ``Follower.take`` ◀── ``tick``, once a second
SIGTERM, SIGINT ────────▶ loop: ``Follower.ended`` ──▶ the listeners end, then the watches
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from scheduler_core.cache.events import Batch, WatchStatus
from scheduler_core.runtime.http_server import Listener, serve_listeners

_TICK_S = 1.0
Deliver = Callable[[Batch[Any]], None]


class WatchSet(Protocol):
    """``Watches``."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End."""
        ...

    def status(self, now: float) -> tuple[WatchStatus, ...]:
        """How each is doing. ``now``: monotonic seconds."""
        ...


class Daemon(Protocol):
    """What a program is made of but its sockets. All is called on the loop's thread."""

    @property
    def stop_requested(self) -> asyncio.Event:
        """Set it to end."""
        ...

    def running_watches(self, watches: WatchSet) -> AbstractContextManager[None]:
        """Within: the watches run, and what they see is taken in."""
        ...

    def apply_batch(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        ...

    def tick(self) -> None:
        """Let time pass."""
        ...


async def run_daemon(
    service: Daemon,
    listeners: Sequence[Listener],
    watching: Callable[[Deliver], WatchSet],
    drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Until ``ended``, which a signal sets too. What is being asked then is still answered.

    ``retire``: what is to be done then, while the watches still run. Raises what ``take`` or ``tick`` raised, which
    ends it too: without a batch, or without time that passes, what it knows is wrong from then on.
    """
    loop = asyncio.get_running_loop()
    broken: list[Exception] = []

    def guarded(work: Callable[..., None], *of: object) -> None:
        try:
            work(*of)
        except Exception as error:  # noqa: BLE001  raised at the end
            broken.append(error)
            service.stop_requested.set()

    def deliver(batch: Batch[Any]) -> None:
        loop.call_soon_threadsafe(guarded, service.apply_batch, batch)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, service.stop_requested.set)
    ticking = asyncio.create_task(_tick_forever(partial(guarded, service.tick)))
    try:
        with service.running_watches(watching(deliver)):
            await serve_listeners(listeners, service.stop_requested)
            if drain is not None:
                await drain()
    finally:
        ticking.cancel()
    if broken:
        raise broken[0]


async def _tick_forever(tick: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        tick()
