"""A log of the nodes that changed, in order: a reader that keeps values by node catches up from its last mark."""

from __future__ import annotations

from collections.abc import Collection

MAX_NAMES = 1 << 16  # kept; a reader that is further behind must start from scratch


class ChangeLog:
    """A bounded log of names. A mark is a position in it."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._names: list[str] = []
        self._dropped = 0  # names before the first kept one
        self._most = most

    @property
    def mark(self) -> int:
        """The position after the last change."""
        return self._dropped + len(self._names)

    def add_names(self, names: Collection[str]) -> None:
        """Append the nodes that changed."""
        self._names += names
        if len(self._names) > 2 * self._most:
            self._dropped += len(self._names) - self._most
            del self._names[: -self._most]

    def names_since(self, mark: int) -> set[str] | None:
        """Return the nodes that changed after the mark; None where the log no longer reaches back to it."""
        return None if mark < self._dropped else set(self._names[mark - self._dropped :])
