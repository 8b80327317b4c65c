"""A program that follows the cluster, when its own code fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from scheduler_core.cache.events import Batch, NodeUpdate, WatchStatus
from scheduler_core.runtime.calls_in_progress import LONGEST_WAIT_S, CallsInProgress
from scheduler_core.runtime.event_loop import Deliver, Inbox, WatchSet, run_daemon


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


def test_requests_are_served_between_batches() -> None:
    """Each batch takes longer than a turn. What is ready when a turn ends comes before the next batch."""
    order: list[str] = []

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        now = iter(range(100))
        inbox = Inbox(loop, lambda batch: order.append(batch.removed[0]), lambda: float(next(now)))
        for name in ("first", "second", "third"):
            inbox.deliver(Batch(NodeUpdate, (), (name,)))
        await asyncio.sleep(0)
        loop.call_soon(order.append, "request")
        await asyncio.sleep(0.05)
        inbox.deliver(Batch(NodeUpdate, (), ("later",)))
        await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(begin(), 10.0))

    assert [each for each in order if each != "request"] == ["first", "second", "third", "later"]
    assert order.index("request") < order.index("third")


def test_a_large_batch_is_applied_in_parts_with_requests_in_between() -> None:
    """A later batch comes after all parts, and is divided only then."""
    order: list[str] = []

    def split(batch: Batch[Any]) -> Iterator[Batch[Any]]:
        order.append(f"divide {batch.removed[0]}")
        for name in batch.removed:
            yield Batch(NodeUpdate, (), (name,))

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        now = iter(range(100))
        inbox = Inbox(loop, lambda batch: order.append(batch.removed[0]), lambda: float(next(now)), split)
        inbox.deliver(Batch(NodeUpdate, (), ("first", "second", "third")))
        inbox.deliver(Batch(NodeUpdate, (), ("later",)))
        await asyncio.sleep(0)
        loop.call_soon(order.append, "request")
        await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(begin(), 10.0))

    applied = ["divide first", "first", "second", "third", "divide later", "later"]
    assert [each for each in order if each != "request"] == applied
    assert order.index("request") < order.index("third")


def test_an_error_while_a_batch_is_divided_ends_the_daemon() -> None:
    def split(_: Batch[Any]) -> Iterator[Batch[Any]]:
        raise Broken("split")

    async def begin() -> None:
        made = run_daemon(Follower(), (), lambda deliver: Watch(deliver, delivers=True), split=split)
        await asyncio.wait_for(made, 10.0)

    with pytest.raises(Broken, match="split"):
        asyncio.run(begin())


def test_events_wait_for_calls_and_get_a_fifth_of_the_time() -> None:
    """A call that never ends: each event takes 1 ms, and each look at the clock 1 ms more."""
    now, applied, done = [0.0], list[float](), asyncio.Event()

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    def apply(_: Batch[Any]) -> None:
        now[0] += 0.001
        applied.append(now[0])
        if len(applied) == 12:
            done.set()

    async def begin() -> None:
        calls = CallsInProgress(lambda: 0.0)
        calls.begin("connection")
        inbox = Inbox(asyncio.get_running_loop(), apply, clock, calls=calls)
        for _ in range(12):
            inbox.deliver(Batch(NodeUpdate, ()))
        await done.wait()

    asyncio.run(asyncio.wait_for(begin(), 10.0))

    gaps = [later - before for before, later in pairwise(applied) if later - before > 0.01]
    assert applied[0] >= LONGEST_WAIT_S
    assert gaps
    assert all(LONGEST_WAIT_S <= each < LONGEST_WAIT_S + 0.005 for each in gaps)
    assert len(applied) / (len(gaps) + 1) >= 3  # 6 ms of events, here with the clock's own, after each wait


def test_events_are_applied_at_once_after_a_call_and_while_a_call_waits_for_them() -> None:
    order: list[str] = []

    async def begin() -> None:
        calls = CallsInProgress(lambda: 0.0)
        inbox = Inbox(
            asyncio.get_running_loop(), lambda batch: order.append(batch.removed[0]), lambda: 0.0, calls=calls
        )
        calls.begin("connection")
        inbox.deliver(Batch(NodeUpdate, (), ("first",)))
        await asyncio.sleep(0.02)
        order.append("call waits")
        with calls.waiting():
            await asyncio.sleep(0.02)
        inbox.deliver(Batch(NodeUpdate, (), ("second",)))
        await asyncio.sleep(0.02)
        order.append("call ends")
        calls.end("connection")
        await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(begin(), 10.0))

    assert order == ["call waits", "first", "call ends", "second"]
