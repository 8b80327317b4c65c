"""Threads that users share: users take turns, and slow users leave threads to others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from operator import floordiv

import pytest

from scheduler_core.runtime.fair_pool import FairPool


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Blocked:
    """Work of a user that runs until it is released."""

    def __init__(self, pool: FairPool, user: str) -> None:
        self.begun, self._released = threading.Event(), threading.Event()
        self.future: Future[str] = pool.submit(user, self._run)
        self.user = user

    def release(self) -> None:
        self._released.set()
        wait([self.future])

    def _run(self) -> str:
        self.begun.set()
        self._released.wait()
        return self.user


def _record(ran: list[str], user: str) -> Callable[[], None]:
    return lambda: ran.append(user)


def test_users_take_turns() -> None:
    pool, ran = FairPool(2, "test"), list[str]()
    blocked = [_Blocked(pool, each) for each in ("x", "y")]
    for each in blocked:
        assert each.begun.wait(10)
    waiting = [pool.submit(each, _record(ran, each)) for each in ("a", "a", "a", "b", "c", "b")]

    blocked[0].release()  # one thread: the order is that of the turns
    wait(waiting)

    assert ran == ["a", "b", "c", "a", "b", "a"]
    blocked[1].release()
    pool.shutdown()


def test_users_with_slow_work_share_half_of_the_threads() -> None:
    clock = _Clock()
    pool = FairPool(4, "test", clock)
    slow = [_Blocked(pool, "slow") for _ in range(6)]
    for each in slow[:4]:
        assert each.begun.wait(10)
    other = _Blocked(pool, "other")
    clock.now = 3.0

    slow[0].release()
    assert other.begun.wait(10)  # and not the slow user's next
    other.release()
    slow[1].release()  # two of four still run
    assert pool.submit("other", lambda: 7).result(10) == 7
    assert not slow[4].begun.is_set()
    slow[2].release()
    assert slow[4].begun.wait(10)
    for each in (slow[3], slow[4], slow[5]):
        each.release()
    pool.shutdown()


def test_a_user_is_slow_for_a_while_only() -> None:
    clock = _Clock()
    pool = FairPool(2, "test", clock)
    first = _Blocked(pool, "a")
    assert first.begun.wait(10)
    clock.now = 3.0
    first.release()
    clock.now = 604.0

    both = [_Blocked(pool, "a"), _Blocked(pool, "a")]

    assert all(each.begun.wait(10) for each in both)
    for each in both:
        each.release()
    pool.shutdown()


def test_an_error_is_raised_by_the_result_and_the_thread_goes_on() -> None:
    pool = FairPool(2, "test")

    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 // 0).result(10)
    assert pool.submit("a", lambda: 7).result(10) == 7
    pool.shutdown()


def test_what_waits_at_the_shutdown_is_cancelled() -> None:
    pool = FairPool(2, "test")
    running = [_Blocked(pool, "a"), _Blocked(pool, "a")]
    for each in running:
        assert each.begun.wait(10)
    waiting = pool.submit("a", lambda: 7)

    pool.shutdown()

    assert waiting.cancelled()
    for each in running:
        each.release()


def test_no_thread_is_lost_after_more_work_than_threads() -> None:
    pool = FairPool(2, "test")
    for _ in range(3):
        burst = [pool.submit(user, partial(floordiv, 1, at)) for at in range(20) for user in ("a", "b")]
        wait(burst)
        assert [each.exception() is None for each in burst] == [each > 0 for each in range(20) for _ in "ab"]
        both = [_Blocked(pool, each) for each in ("a", "b")]
        assert all(each.begun.wait(10) for each in both)
        for each in both:
            each.release()
    pool.shutdown()
