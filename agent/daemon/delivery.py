"""Something that must be the same elsewhere: what is wanted, what was confirmed, and when to try (again)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.daemon.schedule import Schedule
from agent.publish import PublishError

T = TypeVar("T")
R = TypeVar("R")


class Delivery(Generic[T, R]):
    """Delivers the newest wanted value: when it differs from the confirmed one, and again every ``refresh_s``.

    Nothing counts as confirmed before ``send`` returned. However much changed while the other side was away, it is
    one value that is sent when it is back. ``essence`` is what must differ for a value to be sent before its time.
    """

    def __init__(
        self,
        send: Callable[[T], R],
        schedule: Schedule,
        refresh_s: float,
        essence: Callable[[T], object] = lambda it: it,
    ) -> None:
        self._send = send
        self._schedule = schedule
        self._refresh_s = refresh_s
        self._essence = essence
        self._failures = 0
        self._not_before = float("-inf")  # after a failure
        self._refresh_at = float("-inf")
        self.wanted: T | None = None
        self.confirmed: T | None = None
        self.error: str | None = None  # why the last attempt failed
        self.behind_since: float | None = None  # since when something else is wanted than is confirmed

    def want(self, value: T, now: float) -> None:
        """Set the value to deliver."""
        self.wanted = value
        if self._differs and self.behind_since is None:
            self.behind_since = now

    def due(self) -> float:
        """When to call ``attempt``."""
        if self.wanted is None:
            return float("inf")
        return max(self._not_before, float("-inf") if self._differs else self._refresh_at)

    def attempt(self, now: float) -> R | None:
        """Send what is wanted; what the other side said, or None where it was not taken."""
        assert self.wanted is not None
        try:
            answer = self._send(self.wanted)
        except PublishError as error:
            self._failures += 1
            wait = self._schedule.backoff(self._failures)
            self._not_before = now + max(wait, error.retry_after or 0.0)
            self.error = str(error)
            return None
        interval = self._schedule.first if self.confirmed is None else self._schedule.next
        self.confirmed, self.error, self.behind_since = self.wanted, None, None
        self._failures, self._not_before = 0, float("-inf")
        self._refresh_at = now + interval(self._refresh_s)
        return answer

    @property
    def _differs(self) -> bool:
        if self.wanted is None or self.confirmed is None:
            return self.wanted is not None
        return self._essence(self.wanted) != self._essence(self.confirmed)
