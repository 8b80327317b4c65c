"""Plans go first: two threads that compute get in each other's way, so a search for room rests while one plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask, search_hold

HOLD_SEARCH_S = 3.0  # of CPU, to find where to hold room
GIVE_WAY_S = 10.0  # that a search rests at most


class HoldThrottle:
    """Of the thread that plans before the one that seeks room."""

    def __init__(self, room_s: float = HOLD_SEARCH_S, give_way_s: float = GIVE_WAY_S) -> None:
        self._room_s, self._give_way_s = room_s, give_way_s
        self._idle = threading.Event()
        self._idle.set()

    @contextmanager
    def plan_running(self) -> Generator[None]:
        """Within: something is planned."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def search_hold(self, task: HoldTask) -> HoldResult:
        """Find where to hold room, for the rest."""
        began, until = time.thread_time(), time.monotonic() + self._give_way_s

        def over() -> bool:
            self._idle.wait(max(0.0, until - time.monotonic()))
            return time.thread_time() - began > self._room_s

        found = search_hold(task._replace(over=over))
        return found._replace(took=time.thread_time() - began)
