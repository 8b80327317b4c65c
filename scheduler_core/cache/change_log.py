"""Which nodes changed, in order: so that whoever keeps something by node catches up from where it was."""

from __future__ import annotations

from collections.abc import Collection

MAX_NAMES = 1 << 16  # remembered; who is further behind starts anew


class ChangeLog:
    """A bounded log of names. A mark is a place in it."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._names: list[str] = []
        self._dropped = 0  # names before the first that is kept
        self._most = most

    @property
    def mark(self) -> int:
        """After the last change."""
        return self._dropped + len(self._names)

    def add_names(self, names: Collection[str]) -> None:
        """Those nodes changed."""
        self._names += names
        if len(self._names) > 2 * self._most:
            self._dropped += len(self._names) - self._most
            del self._names[: -self._most]

    def names_since(self, mark: int) -> set[str] | None:
        """The nodes that changed after that; None where that was too long ago to know."""
        return None if mark < self._dropped else set(self._names[mark - self._dropped :])
