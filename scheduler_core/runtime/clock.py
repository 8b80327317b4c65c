"""A wall clock that never jumps: what lasts 30 seconds by it lasts about as long, whatever is done to the system's.

What is known is judged by points in time that others wrote (when an agent observed a node), and by how long ago
something happened here (an answer that no watch has shown yet). An hour that the wall clock gains or loses at once
would end all that is assumed, or make it last for an hour. So this one goes on by the monotonic clock, and draws near.
"""

from __future__ import annotations

import time
from collections.abc import Callable

RATE = 0.5  # seconds in a second that it gains or loses at most: an hour takes two


class SlewedClock:
    """For one thread. Called, it answers seconds since 1970."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._at, self._read = wall(), monotonic()

    def __call__(self) -> float:
        now = self._monotonic()
        passed, self._read = now - self._read, now
        due = self._at + passed
        self._at = due + max(-RATE * passed, min(RATE * passed, self._wall() - due))
        return self._at
