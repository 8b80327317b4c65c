"""Delivery of one value to a remote side: the wanted value, the confirmed value, and the time of the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from agent.daemon.schedule import NodeSchedule
from agent.publish import PublishError

T = TypeVar("T")
R = TypeVar("R")


class SlowPart(NamedTuple, Generic[T]):
    """The part of a value whose change alone is sent at most every ``every_s`` seconds. ``select`` extracts it."""

    select: Callable[[T], object]
    every_s: float


class Delivery(Generic[T, R]):
    """Sends the newest wanted value when it differs from the confirmed one, and again every ``refresh_s`` seconds.

    A value is confirmed only when ``send`` has returned. After an outage only the newest value is sent. ``compared_by``
    extracts the part of a value whose change is sent at once; ``slow`` names a part whose change may wait.
    """

    def __init__(
        self,
        send: Callable[[T], R],
        schedule: NodeSchedule,
        refresh_s: float,
        compared_by: Callable[[T], object] = lambda it: it,
        slow: SlowPart[T] | None = None,
    ) -> None:
        self._send = send
        self._schedule = schedule
        self._refresh_s = refresh_s
        self._compared_by = compared_by
        self._slow = slow
        self._slow_at = float("-inf")  # when a change of the slow part may be sent
        self._failures = 0
        self._not_before = float("-inf")  # after a failure
        self._refresh_at = float("-inf")
        self.wanted: T | None = None
        self.confirmed: T | None = None
        self.error: str | None = None  # of the last attempt
        self.pending_since: float | None = None  # since when the wanted value is not confirmed

    def set_wanted(self, value: T, now: float) -> None:
        """Set the value to deliver."""
        self.wanted = value
        if self._differs and self.pending_since is None:
            self.pending_since = now

    def next_attempt_at(self) -> float:
        """Return when to call ``attempt``."""
        if self.wanted is None:
            return float("inf")
        if self._differs:
            return self._not_before
        return max(self._not_before, min(self._refresh_at, self._slow_at) if self._slow_differs else self._refresh_at)

    def attempt(self, now: float) -> R | None:
        """Send the wanted value. Returns the response of ``send``, or None where it failed."""
        assert self.wanted is not None
        try:
            response = self._send(self.wanted)
        except PublishError as error:
            self._failures += 1
            wait = self._schedule.backoff(self._failures)
            self._not_before = now + max(wait, error.retry_after or 0.0)
            self.error = str(error)
            return None
        interval = self._schedule.first_interval if self.confirmed is None else self._schedule.next_interval
        self.confirmed, self.error, self.pending_since = self.wanted, None, None
        self._failures, self._not_before = 0, float("-inf")
        self._refresh_at = now + interval(self._refresh_s)
        if self._slow is not None:
            self._slow_at = now + self._slow.every_s
        return response

    @property
    def _differs(self) -> bool:
        if self.wanted is None or self.confirmed is None:
            return self.wanted is not None
        return self._compared_by(self.wanted) != self._compared_by(self.confirmed)

    @property
    def _slow_differs(self) -> bool:
        if self._slow is None or self.wanted is None or self.confirmed is None:
            return False
        return self._slow.select(self.wanted) != self._slow.select(self.confirmed)
