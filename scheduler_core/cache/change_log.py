"""A log of the nodes that changed, in order: a reader that keeps values by node catches up from its last mark."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NAMES = 1 << 16  # kept; a reader that is further behind must start from scratch


class ChangeLog:
    """A log of the last change of each node. A mark is a position in it."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._positions: dict[str, int] = {}  # of the last change of each node; the oldest first
        self._dropped = 0  # positions before the first kept one
        self._most = most
        self.mark = 0  # the position after the last change

    def add_names(self, names: Iterable[str]) -> None:
        """Append the nodes that changed."""
        for name in names:
            self._positions.pop(name, None)
            self._positions[name] = self.mark
            self.mark += 1
        if len(self._positions) > 2 * self._most:  # most of them were removed from the cluster
            kept = list(self._positions.items())[-self._most :]
            self._positions, self._dropped = dict(kept), kept[0][1]

    def names_since(self, mark: int) -> set[str] | None:
        """Return the nodes that changed after the mark; None where the log no longer reaches back to it."""
        if mark < self._dropped:
            return None
        found = set[str]()
        for name, position in reversed(self._positions.items()):
            if position < mark:
                break
            found.add(name)
        return found
