"""Why nodes were refused, without a text for each of them: of 15,000 most have the same reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet


class Rejections(Mapping[str, str]):
    """The reason of each of the names. Never changes."""

    def __init__(self, names: AbstractSet[str], usual: str, others: Mapping[str, str]) -> None:
        """``others``: those of the names whose reason is not the usual one."""
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
        """All that occur."""
        usual = {self._usual} if len(self._others) < len(self._names) else set[str]()
        return usual.union(self._others.values())

    def names_with(self, reason: str) -> AbstractSet[str]:
        """Those that have that reason."""
        if reason == self._usual:
            return self._names - self._others.keys()
        return {name for name, each in self._others.items() if each == reason}

    def with_reasons(self, others: Mapping[str, str]) -> Rejections:
        """The same, but with these reasons for some."""
        return Rejections(self._names, self._usual, {**self._others, **others})

    def as_dict(self) -> dict[str, str]:
        """The same with a text for each, for who reads all of them."""
        return {**dict.fromkeys(self._names, self._usual), **self._others}


def distinct_reasons(refused: Mapping[str, str]) -> AbstractSet[str]:
    """All that occur."""
    return refused.reasons if isinstance(refused, Rejections) else frozenset(refused.values())
