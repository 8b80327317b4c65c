"""Sets of GPUs as bit masks, and what is known of a set that nobody can name for certain. Pure.

Bit n stands for the GPU at place n of ``NodeTopology.gpus`` (not for its index: indices may have gaps).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

MAX_SETS = 2048  # sets that are listed one by one; what would be more is said as AnyOf


class ExactSets(NamedTuple):
    """It is one of these sets. Ascending, distinct."""

    masks: tuple[int, ...]

    @property
    def among(self) -> int:
        """All GPUs that may be in it."""
        return union(self.masks)


class SomeSet(NamedTuple):
    """It is some set of at least ``size`` of the GPUs ``among``: all that can be said without being wrong."""

    among: int
    size: int


Sets = ExactSets | SomeSet


def union(masks: Iterable[int]) -> int:
    """All members of those sets."""
    together = 0
    for mask in masks:
        together |= mask
    return together


def exact_sets(masks: set[int] | frozenset[int]) -> ExactSets:
    """Those sets."""
    return ExactSets(tuple(sorted(masks)))


@lru_cache(maxsize=1 << 12)
def member_places(mask: int) -> tuple[int, ...]:
    """The places in a set, ascending."""
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


def single_bits(mask: int) -> list[int]:
    """A set's members as sets of one, ascending."""
    return [1 << place for place in member_places(mask)]


def subsets(mask: int, size: int) -> Iterator[int]:
    """All sets of that many of its members."""
    return (sum(chosen) for chosen in combinations(single_bits(mask), size))


def count_subsets(mask: int, size: int) -> int:
    """How many there are."""
    return comb(mask.bit_count(), size)


def some_set(among: int, count: int) -> Sets:
    """Any ``count`` of them: listed where they are few."""
    return (
        ExactSets(tuple(sorted(subsets(among, count))))
        if count_subsets(among, count) <= MAX_SETS
        else SomeSet(among, count)
    )
