"""Work between calls: soon after calls, and also if calls never end."""

from __future__ import annotations

import asyncio

from scheduler_core.runtime.background_work import BackgroundWork
from scheduler_core.runtime.calls_in_progress import CallsInProgress


async def all_pieces(calls: CallsInProgress, number: int, *, later: bool = False) -> list[int]:
    """Return how many pieces were left after each piece."""
    done, ended = list[int](), asyncio.Event()

    def do_piece() -> bool:
        done.append(number - len(done) - 1)
        if not done[-1]:
            ended.set()
        return done[-1] > 0

    work = BackgroundWork(calls, do_piece, 0.001)
    if later:
        work.start_later()
        assert not done
    else:
        work.start()
        work.start()  # it is going on already
        assert len(done) <= 1
    await asyncio.wait_for(ended.wait(), 10)
    await asyncio.sleep(0.01)
    return done


def test_pieces_are_done_until_nothing_is_left() -> None:
    assert asyncio.run(all_pieces(CallsInProgress(), 3)) == [2, 1, 0]


def test_pieces_may_begin_later() -> None:
    assert asyncio.run(all_pieces(CallsInProgress(), 3, later=True)) == [2, 1, 0]


def test_pieces_are_done_although_calls_never_end() -> None:
    calls = CallsInProgress(lambda: 0.0)
    calls.begin("connection")

    assert asyncio.run(all_pieces(calls, 3)) == [2, 1, 0]
    assert calls.come_first
