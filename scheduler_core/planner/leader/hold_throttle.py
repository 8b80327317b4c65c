"""Pauses the search for a capacity hold while a plan is computed: two computing threads slow each other down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask, search_hold
from scheduler_core.planner.leader.preemption_search import (
    PreemptionSearch,
    PreemptionSearchResult,
    run_preemption_search,
)

HOLD_SEARCH_S = 3.0  # CPU time of one search
MAX_PAUSE_S = 10.0  # a search pauses at most this long


class HoldThrottle:
    """Gives the planning thread priority over the hold search thread."""

    def __init__(self, search_s: float = HOLD_SEARCH_S, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._search_s, self._max_pause_s = search_s, max_pause_s
        self._idle = threading.Event()
        self._idle.set()

    @contextmanager
    def plan_running(self) -> Generator[None]:
        """Pause searches within this context."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def search_hold(self, task: HoldTask) -> HoldResult:
        """Search nodes to hold; pause while a plan runs."""
        began = time.thread_time()
        found = search_hold(task._replace(is_out_of_time=self._limit(self._search_s)))
        return found._replace(cpu_s=time.thread_time() - began)

    def search_preemption(self, search: PreemptionSearch) -> PreemptionSearchResult:
        """Search pods to evict; pause while a plan runs."""
        began, policy = time.thread_time(), search.units.policy
        is_out_of_time = self._limit(policy.plan_time_s)
        units = search.units._replace(is_out_of_time=self._limit(policy.unit_time_s))
        found = run_preemption_search(search._replace(units=units, is_out_of_time=is_out_of_time))
        return found._replace(cpu_s=time.thread_time() - began)

    def _limit(self, seconds: float) -> Callable[[], bool]:
        """Return a function that pauses while a plan runs, and returns True after so much CPU time of this thread."""
        ends, until = time.thread_time() + seconds, time.monotonic() + self._max_pause_s

        def is_out_of_time() -> bool:
            self._idle.wait(max(0.0, until - time.monotonic()))
            return time.thread_time() > ends

        return is_out_of_time
