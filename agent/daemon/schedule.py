"""Intervals with jitter, and back-off.

The random generator is seeded with the node's name: 15,000 nodes spread their load, and a node behaves the same after
a restart.
"""

from __future__ import annotations

from random import Random

_JITTER = 0.1
_LONGEST_BACKOFF_S = 60.0


class NodeSchedule:
    """The intervals of one node."""

    def __init__(self, node: str) -> None:
        self._random = Random(f"gputopo {node}")  # noqa: S311  spreads load; no security depends on it

    def first_interval(self, interval_s: float) -> float:
        """Seconds to the second run: any part of the interval, because a rollout starts all nodes at once."""
        return interval_s * self._random.random()

    def next_interval(self, interval_s: float) -> float:
        """Seconds to the next run: the interval, plus or minus a tenth."""
        return interval_s * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row: 1, 2, 4 up to 60, reduced by up to a half."""
        longest = min(_LONGEST_BACKOFF_S, 2.0 ** min(failures - 1, 10))
        return longest * self._random.uniform(0.5, 1)
