"""Items that wait, by user. Users take turns: no user waits for all the items of another user. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """For one thread, or under a lock."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}  # the next user is first

    def append(self, user: str, item: T) -> None:
        """Add an item of a user."""
        self._waiting.setdefault(user, deque()).append(item)

    def count_items(self, user: str) -> int:
        """Return how many items of a user wait."""
        return len(self._waiting.get(user, ()))

    def pop_next(self, has_turn: Callable[[str], bool] = lambda _: True) -> T | None:
        """Remove and return the first item of the next user that may have a turn, who goes to the end of the line."""
        user = next(filter(has_turn, self._waiting), None)
        if user is None:
            return None
        queue = self._waiting.pop(user)
        item = queue.popleft()
        if queue:
            self._waiting[user] = queue
        return item

    def remove(self, user: str, item: T) -> None:
        """Remove an item of a user, if it still waits."""
        queue = self._waiting.get(user)
        if queue is not None and item in queue:
            queue.remove(item)
            if not queue:
                del self._waiting[user]
