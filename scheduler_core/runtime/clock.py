"""A wall clock without jumps: 30 seconds by this clock take about 30 seconds, even if the system clock is set.

The cluster cache compares timestamps of other processes (when an agent observed a node) and measures ages of local
events (an answer that no watch has confirmed yet). A jump of the system clock by an hour would expire all assumed pods
at once, or keep them for an hour. This clock follows the monotonic clock and slews towards the system clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

RATE = 0.5  # maximum correction per second: an hour takes two hours


class SlewedClock:
    """Callable that returns seconds since 1970. For one thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._at, self._read = wall(), monotonic()

    def __call__(self) -> float:
        now = self._monotonic()
        passed, self._read = now - self._read, now
        due = self._at + passed
        self._at = due + max(-RATE * passed, min(RATE * passed, self._wall() - due))
        return self._at
