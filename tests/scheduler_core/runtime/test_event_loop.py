"""A program that follows the cluster, when its own code fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler_core.cache.events import Batch, NodeUpdate, WatchStatus
from scheduler_core.runtime.event_loop import Deliver, WatchSet, run_daemon


class Broken(Exception):  # noqa: N818  of a test
    """An error of our own."""


class Watch:
    """Delivers one batch at once, or nothing."""

    def __init__(self, deliver: Deliver, *, delivers: bool) -> None:
        self._deliver, self._delivers = deliver, delivers

    def start(self) -> None:
        if self._delivers:
            self._deliver(Batch(NodeUpdate, ()))

    def stop(self) -> None:
        """Nothing runs."""

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


class Follower:
    """Takes nothing, and knows no time."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()

    @contextmanager
    def running_watches(self, watches: WatchSet) -> Iterator[None]:
        watches.start()
        yield

    def apply_batch(self, _: Batch[Any]) -> None:
        raise Broken("take")

    def tick(self) -> None:
        raise Broken("tick")


@pytest.mark.parametrize(("delivers", "by"), [(True, "take"), (False, "tick")], ids=["a batch", "time"])
def test_an_error_of_its_own_ends_it(delivers: bool, by: str) -> None:
    async def begin() -> None:
        made = run_daemon(Follower(), (), lambda deliver: Watch(deliver, delivers=delivers))
        await asyncio.wait_for(made, 10.0)

    with pytest.raises(Broken, match=by):
        asyncio.run(begin())
