"""Sets of GPUs as bit masks, and uncertain sets. Pure.

Bit n stands for the GPU at place n of ``NodeTopology.gpus`` (not its index: indices may have gaps).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

MAX_SETS = 2048  # sets in an ExactSets; SomeSet stands for more


class ExactSets(NamedTuple):
    """The set is one of these. Ascending, distinct."""

    masks: tuple[int, ...]

    @property
    def among(self) -> int:
        """The GPUs that may be in the set."""
        return union(self.masks)


class SomeSet(NamedTuple):
    """The set has at least ``size`` of the GPUs ``among``; nothing more is known."""

    among: int
    size: int


Sets = ExactSets | SomeSet


def union(masks: Iterable[int]) -> int:
    """Return the union of the sets."""
    members = 0
    for mask in masks:
        members |= mask
    return members


def certainly_free(sets: Sets) -> int:
    """Return the GPUs that are free in every possible outcome of open admissions."""
    if isinstance(sets, SomeSet):
        return 0
    mask = sets.among
    for each in sets.masks:
        mask &= each
    return mask


def exact_sets(masks: set[int] | frozenset[int]) -> ExactSets:
    """Return the sets in ascending order."""
    return ExactSets(tuple(sorted(masks)))


@lru_cache(maxsize=1 << 12)
def member_places(mask: int) -> tuple[int, ...]:
    """Return the places in a set, ascending."""
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


def lowest_bit(mask: int) -> int:
    """Return the lowest place in a set that is not empty."""
    return (mask & -mask).bit_length() - 1


def single_bits(mask: int) -> list[int]:
    """Return the members of a set as sets of one GPU, ascending."""
    return [1 << place for place in member_places(mask)]


def subsets(mask: int, size: int) -> Iterator[int]:
    """Return all subsets of this size."""
    return (sum(chosen) for chosen in combinations(single_bits(mask), size))


def count_subsets(mask: int, size: int) -> int:
    """Return the number of subsets of this size."""
    return comb(mask.bit_count(), size)


def some_set(among: int, count: int) -> Sets:
    """Return any ``count`` of the GPUs, as ExactSets if there are few enough."""
    return (
        ExactSets(tuple(sorted(subsets(among, count))))
        if count_subsets(among, count) <= MAX_SETS
        else SomeSet(among, count)
    )
