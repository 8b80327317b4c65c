"""Garbage collection of daemons with many long-lived objects.

The interpreter's own collector searches all objects whenever enough are new: 0.2 s with 15,000 nodes, in the middle of
a call. Here it is off. Between calls only the objects that were made since are searched, after every few milliseconds
of work, and those that remain are not searched again: they end when the last reference to them does. Only cycles among
older objects are left. None were found after thousands of connections and events, so all objects are searched once in
hours, in a pause: a long one, unless the search will be short, judged by the last search and the allocated memory now.
Where no pause comes, a short search is done between two calls, and a long one is not done.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from math import inf
from time import thread_time

# CPU time between two searches of new objects. The interpreter's count of new objects is no measure: it falls when old
# objects end, so with thousands of events a second a search at 2,000 "new" objects took up to 40 ms. Now: up to 5 ms.
NEW_S = 0.008
FULL_S, LATEST_S = 6 * 3600.0, 12 * 3600.0  # between two full searches: in a pause; without a pause
PAUSE_S = 2.0  # without a call
LONG_PAUSE_S = 60.0  # the same before a long search: a call that arrives then has to wait for it
SEARCH_S = 600.0  # between two full searches of a daemon without requests
SHORT_S = 0.15  # CPU time of a short full search, by the last one and the memory since: a call may wait for it


class LongLivedObjects:
    """Keeps the view of a cluster out of the automatic garbage collection, for daemons that answer no requests.

    Otherwise the interpreter searches all objects again after each few hundred plans.
    """

    def __init__(self) -> None:
        self._search_at: float | None = None  # monotonic seconds; None: no objects are kept out

    def tick(self, now: float, *, loaded: bool) -> None:
        """Search all objects now and then. ``loaded``: False while there is no view; a former one may be garbage."""
        if not loaded:
            if self._search_at is not None:
                gc.unfreeze()
                self._search_at = None
        elif self._search_at is None or now >= self._search_at:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._search_at = now + SEARCH_S


class GarbageCollection:
    """Replaces the automatic garbage collection of this process, with searches at times without requests."""

    def __init__(self, cpu_clock: Callable[[], float] = thread_time) -> None:
        self._cpu_clock = cpu_clock
        self._full_at = -inf
        self._last_call = -inf
        self._full_cpu_s, self._full_blocks = 0.0, 1  # of the last full search; allocated blocks of memory
        self._searched_at = 0.0  # by the CPU clock

    def start(self, now: float) -> None:
        """Search all objects once, and turn the automatic collection off. ``now``: monotonic seconds, as below."""
        gc.disable()
        self._collect_all(now)

    @property
    def started(self) -> bool:
        """True after ``start``."""
        return self._full_at > -inf

    def note_call(self, now: float) -> None:
        """Record the time of a call, so that full searches wait for a pause."""
        self._last_call = now

    @property
    def due(self) -> bool:
        """True if there may be enough new objects for a search. The test is cheap: call it after each piece of work."""
        return self.started and self._cpu_clock() - self._searched_at > NEW_S

    def collect_new(self) -> None:
        """Search the new objects, if there may be enough."""
        if self.due:
            self._collect_new()

    def tick(self, now: float) -> None:
        """Search all objects after hours, else the new objects."""
        if not self.started:
            return
        if now - self._full_at > FULL_S and self._is_good_time(now):
            self._collect_all(now)
        else:
            self._collect_new()

    def _is_good_time(self, now: float) -> bool:
        pause_s = now - self._last_call
        if pause_s > LONG_PAUSE_S:
            return True
        return (pause_s > PAUSE_S or now - self._full_at > LATEST_S) and self._expected_cpu_s() < SHORT_S

    def _expected_cpu_s(self) -> float:
        """Return what a full search takes now, by the last one.

        ``gc.get_freeze_count`` visits all objects, 0.4 s with 15,000 nodes. The number of blocks takes a millisecond.
        """
        return self._full_cpu_s * sys.getallocatedblocks() / self._full_blocks

    def _collect_new(self) -> None:
        gc.collect()
        gc.freeze()
        self._searched_at = self._cpu_clock()

    def _collect_all(self, now: float) -> None:
        began = self._cpu_clock()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._searched_at = self._cpu_clock()
        self._full_at, self._full_cpu_s = now, self._searched_at - began
        self._full_blocks = sys.getallocatedblocks()
