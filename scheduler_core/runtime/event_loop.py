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
from scheduler_core.runtime.http_server import Listener, serve

_TICK_S = 1.0
Deliver = Callable[[Batch[Any]], None]


class Watching(Protocol):
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


class Follower(Protocol):
    """What a program is made of but its sockets. All is called on the loop's thread."""

    @property
    def ended(self) -> asyncio.Event:
        """Set it to end."""
        ...

    def watched(self, watches: Watching) -> AbstractContextManager[None]:
        """Within: the watches run, and what they see is taken in."""
        ...

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        ...

    def tick(self) -> None:
        """Let time pass."""
        ...


async def run(
    service: Follower,
    listeners: Sequence[Listener],
    watching: Callable[[Deliver], Watching],
    retire: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Until ``ended``, which a signal sets too. What is being asked then is still answered.

    ``retire``: what is to be done then, while the watches still run. Raises what ``take`` or ``tick`` raised, which
    ends it too: without a batch, or without time that passes, what it knows is wrong from then on.
    """
    loop = asyncio.get_running_loop()
    broken: list[Exception] = []

    def own(work: Callable[..., None], *of: object) -> None:
        try:
            work(*of)
        except Exception as error:  # noqa: BLE001  raised at the end
            broken.append(error)
            service.ended.set()

    def deliver(batch: Batch[Any]) -> None:
        loop.call_soon_threadsafe(own, service.take, batch)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, service.ended.set)
    ticking = asyncio.create_task(_tick_forever(partial(own, service.tick)))
    try:
        with service.watched(watching(deliver)):
            await serve(listeners, service.ended)
            if retire is not None:
                await retire()
    finally:
        ticking.cancel()
    if broken:
        raise broken[0]


async def _tick_forever(tick: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        tick()
