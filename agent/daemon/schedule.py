"""When things are due: intervals with jitter, and back-off.

Every node has a generator of its own, seeded by its name, so that 15,000 of them spread out, and so that the same node
does the same after a restart.
"""

from __future__ import annotations

from random import Random

_JITTER = 0.1
_LONGEST_BACKOFF_S = 60.0


class Schedule:
    """The times of one node."""

    def __init__(self, node: str) -> None:
        self._random = Random(f"gputopo {node}")  # noqa: S311  spreads load; nothing is guarded by it

    def first(self, interval_s: float) -> float:
        """Seconds to the second beat of a series: anywhere in the interval, since a rollout starts all at once."""
        return interval_s * self._random.random()

    def next(self, interval_s: float) -> float:
        """Seconds to the next beat: the interval, give or take a tenth."""
        return interval_s * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row: 1, 2, 4 up to 60, less up to a half."""
        longest = min(_LONGEST_BACKOFF_S, 2.0 ** min(failures - 1, 10))
        return longest * self._random.uniform(0.5, 1)
