"""The rejected nodes with their reasons, stored compactly: of 15,000 nodes most have the same reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet


class Rejections(Mapping[str, str]):
    """A read-only mapping from node to reason."""

    def __init__(self, names: AbstractSet[str], usual: str, others: Mapping[str, str]) -> None:
        """Create the mapping. ``others``: the nodes whose reason is not the usual one."""
        self._names = names
        self._usual = usual
        self._others = others

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return self._others.get(name, self._usual)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    @property
    def reasons(self) -> AbstractSet[str]:
        """All reasons that occur."""
        usual = {self._usual} if len(self._others) < len(self._names) else set[str]()
        return usual.union(self._others.values())

    def names_with_reason(self, reason: str) -> AbstractSet[str]:
        """Return the nodes with this reason."""
        if reason == self._usual:
            return self._names - self._others.keys()
        return {name for name, each in self._others.items() if each == reason}

    def with_reasons(self, others: Mapping[str, str]) -> Rejections:
        """Return the mapping with other reasons for some nodes, and for further nodes."""
        names = self._names if others.keys() <= self._names else self._names | others.keys()
        return Rejections(names, self._usual, {**self._others, **others})

    def as_dict(self) -> dict[str, str]:
        """Return a plain dictionary."""
        return {**dict.fromkeys(self._names, self._usual), **self._others}


def distinct_reasons(rejected: Mapping[str, str]) -> AbstractSet[str]:
    """Return all reasons that occur."""
    return rejected.reasons if isinstance(rejected, Rejections) else frozenset(rejected.values())
