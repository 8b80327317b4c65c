"""Renders what several peers ask for once, and hands the same bytes to all who ask within a second.

Without it each peer that asks has the page rendered anew and holds bytes of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

FOR_S = 1.0
_MOST = 8  # results that are kept; of pages a MiB each

T = TypeVar("T")


class Shared(Generic[T]):
    """Results by key, each kept for a second from when the work on it began. For one event loop."""

    def __init__(self, for_s: float = FOR_S, most: int = _MOST) -> None:
        self._for_s, self._most = for_s, most
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result for the key: that of another caller where there is one, or else that of ``work``."""
        task = self._tasks.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            until = loop.time() + self._for_s
            task = self._tasks[key] = asyncio.create_task(_run(work))
            task.add_done_callback(lambda done: loop.call_at(until, self._forget, key, done))
            self._drop_oldest()
        return await asyncio.shield(task)  # a caller that is cancelled does not cancel it for the others

    def _drop_oldest(self) -> None:
        done = [key for key, task in self._tasks.items() if task.done()]
        for key in done[: max(0, len(self._tasks) - self._most)]:
            del self._tasks[key]

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
