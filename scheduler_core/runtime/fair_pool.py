"""Threads that users share: users take turns, and users with slow work share half of the threads.

``concurrent.futures.ThreadPoolExecutor`` runs work in the order of its arrival: one user with slow work delays all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from scheduler_core.runtime.turn_queue import TurnQueue

T = TypeVar("T")
_SLOW_S = 2.0  # work that takes longer is slow
_REMEMBERED_S = 600.0  # after its last slow work, a user counts as slow


class _Work(NamedTuple):
    user: str
    call: Callable[[], Any]
    future: Future[Any]


class FairPool:
    """For any thread."""

    def __init__(self, threads: int, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``threads``: 2 or more."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads, self._max_slow, self._clock = threads, threads // 2, clock
        self._active = 0  # threads that look for work
        self._lock = threading.Lock()
        self._waiting = TurnQueue[_Work]()
        self._running: dict[Future[Any], tuple[str, float]] = {}  # the user, and when the work began
        self._slow_until: dict[str, float] = {}  # by user

    def submit(self, user: str, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` on a thread when it is the turn of this user."""
        work = _Work(user, call, Future())
        with self._lock:
            self._waiting.append(user, work)
            is_full = self._active == self._threads
            self._active += not is_full
        if not is_full:  # else each thread looks for more work when it has done its own
            self._pool.submit(self._run_waiting)
        return work.future

    def shutdown(self) -> None:
        """Cancel what waits; do not wait for what runs."""
        with self._lock:
            cancelled = [*iter(self._waiting.pop_next, None)]
        self._pool.shutdown(wait=False, cancel_futures=True)
        for work in cancelled:
            work.future.cancel()

    def _run_waiting(self) -> None:
        """Run work until none may begin: work that slow users may not begin now begins when theirs has ended."""
        while (work := self._take_work()) is not None:
            try:
                work.future.set_result(work.call())
            except BaseException as error:  # noqa: BLE001  raised by ``Future.result``, as by ThreadPoolExecutor
                work.future.set_exception(error)
            finally:
                self._end_work(work)

    def _take_work(self) -> _Work | None:
        with self._lock:
            now = self._clock()
            slow = self._slow_users(now)
            has_slow_thread = sum(user in slow for user, _ in self._running.values()) < self._max_slow
            work = self._waiting.pop_next(lambda user: has_slow_thread or user not in slow)
            if work is None:
                self._active -= 1
            else:
                work.future.set_running_or_notify_cancel()
                self._running[work.future] = work.user, now
            return work

    def _end_work(self, work: _Work) -> None:
        with self._lock:
            user, began = self._running.pop(work.future)
            now = self._clock()
            if now - began > _SLOW_S:
                self._slow_until = {each: until for each, until in self._slow_until.items() if until > now}
                self._slow_until[user] = now + _REMEMBERED_S

    def _slow_users(self, now: float) -> set[str]:
        still_running = {user for user, began in self._running.values() if now - began > _SLOW_S}
        return still_running | {user for user, until in self._slow_until.items() if until > now}
