"""Shares the result of expensive work between requests: work starts at most once a second for each key.

Without sharing, each request would render the page again and hold its own bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

FOR_S = 1.0
_MAX_RESULTS = 8  # pages have up to 1 MiB each

T = TypeVar("T")


class SharedResults(Generic[T]):
    """Results by key, each kept for a second from the start of its work. For one event loop."""

    def __init__(self, for_s: float = FOR_S, max_results: int = _MAX_RESULTS) -> None:
        self._for_s, self._max_results = for_s, max_results
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the kept result of the key, or else the result of ``work``."""
        task = self._tasks.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            until = loop.time() + self._for_s
            task = self._tasks[key] = asyncio.create_task(_run(work))
            task.add_done_callback(lambda done: loop.call_at(until, self._forget, key, done))
            self._drop_oldest()
        return await asyncio.shield(task)  # a cancelled request does not cancel the work

    def _drop_oldest(self) -> None:
        done = [key for key, task in self._tasks.items() if task.done()]
        for key in done[: max(0, len(self._tasks) - self._max_results)]:
            del self._tasks[key]

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
