"""Prediction of the GPUs that NVIDIA's device plugin prefers, over all orders in which they may be offered. Pure.

The best-effort policy of the plugin divides the free GPUs into sets of the requested size, in every possible way. It
takes the division with the highest total of points, and the best set of that division; of equal sets the first that it
sees. The kubelet offers the free GPUs in random order. So the prediction is a set of possible outcomes: the best sets
of all best divisions; for each of them, some order of the offer makes it the first. If the kubelet requires some GPUs,
only divisions with a set that contains them count, and that set wins.

If the GPUs do not fill the last set, the plugin pads it; a padded set that wins makes the plugin crash
(NVIDIA/go-gpuallocator#80): ``may_crash``. It also crashes when it compares two GPUs of which only one reports the
links between them (``calculateGPUPairScore``), in whichever division these are in one set.

In divisions into seven and more sets, later candidates partly overwrite earlier sets during the search; then any set
may result, and the prediction is ``SomeSet``. So it is if the points of a pair are unknown, and if the search would
take too long: on machines of 16 GPUs that are hardly symmetric. GPUs that can be exchanged (``symmetry``) are searched
once. Every prediction contains all possible outcomes.

To model another version of the device plugin, compare its version of go-gpuallocator with this source; the simulated
plugin of the tests (``tests/simulated_node/preferred.py``) is an independent model of the same policy.

Source: ``gpuallocator/besteffort_policy.go`` of NVIDIA/go-gpuallocator.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from math import comb
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import (
    MAX_SETS,
    ExactSets,
    Sets,
    SomeSet,
    count_subsets,
    exact_sets,
    member_places,
    some_set,
    subsets,
)
from scheduler_core.allocation.machine_shape import MachineShape

_MOST_GROUPS = 6  # sets in a division that the plugin keeps correctly
# Sets visited in one search, 10 us each: enough for all machines of 8 GPUs, and for trees of 16. Without any symmetry,
# each set of free GPUs has a search of its own, so these are shorter.
_MOST_WORK, _MOST_WORK_WITHOUT_SYMMETRY = 2200, 800
_MAX_COMPARED = 800  # sets of one size whose points are compared


class Prediction(NamedTuple):
    """The possible outcomes of a request for GPUs. No set at all: the node rejects the pod."""

    sets: Sets
    may_crash: bool = False


def most_work(shape: MachineShape) -> int:
    """Return how many sets a search may visit, and the searches for several sets of free GPUs together."""
    return _MOST_WORK_WITHOUT_SYMMETRY if shape.symmetry.is_trivial else _MOST_WORK


class _Search(NamedTuple):
    """A way of dividing GPUs into sets of equal size, by one of the plugin's views of the machine."""

    shape: MachineShape
    view: int
    size: int


@lru_cache(maxsize=1 << 14)
def preferred_sets(shape: MachineShape, free: int, size: int, required: int = 0) -> Prediction:
    """Return the sets of ``size`` GPUs that the plugin may prefer, over all orders in which the kubelet offers them.

    ``required``: the GPUs among ``free`` that each set contains.
    """
    if size > free.bit_count():
        return Prediction(ExactSets(()))
    if not _is_searched(shape, free.bit_count(), size):
        any_of_these = _some_set_with(required, free & ~required, size - required.bit_count())
        return Prediction(any_of_these, crashes_on_links(shape, free, size))
    exchange = shape.symmetry.permutation(free, required)
    found, may_crash = _preferred(shape, exchange.apply(free), size, exchange.apply(required))
    may_crash |= crashes_on_links(shape, free, size)
    back = exchange.inverse.apply_all
    if isinstance(found, SomeSet):
        return Prediction(SomeSet(free, size), may_crash)
    return Prediction(exact_sets(set(back(found.masks))), may_crash)


def crashes_on_links(shape: MachineShape, free: int, size: int) -> bool:
    """Return whether the plugin compares two of these GPUs whose links only one of them reports."""
    return size > 1 and any(pair & free == pair for pair in shape.one_sided_links)


def may_crash_on_subset(shape: MachineShape, among: int, size: int) -> bool:
    """Return whether the plugin may crash on a request for ``size`` GPUs if it is offered some subset of these GPUs."""
    if crashes_on_links(shape, among, size):
        return True
    views = range(len(shape.points or ())) if 1 < size < among.bit_count() else ()
    return any(_padded_may_win(_Search(shape, view, size)) for view in views)


def search_work(shape: MachineShape, free: int, size: int) -> int:
    """Return how many sets the search visits; more than ``most_work``: it is not done."""
    if not _is_searched(shape, free.bit_count(), size):
        return 1
    left = shape.symmetry.canonical(free)
    return sum(_work(_Search(shape, view, size), left) for view in range(len(shape.points or ())))


def _is_searched(shape: MachineShape, count: int, size: int) -> bool:
    return shape.points is not None and 1 < size < count and -(-count // size) <= _MOST_GROUPS


@lru_cache(maxsize=1 << 14)
def _preferred(shape: MachineShape, free: int, size: int, required: int) -> Prediction:
    """Return the prediction for the canonical form of the GPUs."""
    fresh = size - required.bit_count()
    unknown = Prediction(_some_set_with(required, free & ~required, fresh))
    views = range(len(shape.points or ()))
    sets, may_crash = set[int](), False
    for search in (_Search(shape, view, size) for view in views):
        if _are_alike(search, free):
            return unknown
        found, crashes = (_best_with(search, free, required), False) if required else _winning_sets(search, free)
        may_crash |= crashes
        if found is None:
            return unknown._replace(may_crash=may_crash)
        sets |= found
    return Prediction(exact_sets(sets) if len(sets) <= MAX_SETS else SomeSet(free, size), may_crash)


@lru_cache(maxsize=1 << 12)
def _are_alike(search: _Search, free: int) -> bool:
    """Return whether all pairs have the same points: then all divisions have, and a padded set never wins."""
    assert search.shape.points is not None
    points, members = search.shape.points[search.view], member_places(free)
    return len({points[one][other] for at, one in enumerate(members) for other in members[:at]}) == 1


@lru_cache(maxsize=1 << 12)
def _padded_may_win(search: _Search) -> bool:
    """Return whether a padded set may have as many points as a full one; True also where there are many sets.

    A padded set has at least one GPU less, and points are not negative.
    """
    full, padded = (_all_points(search, size) for size in (search.size, search.size - 1))
    return full is None or padded is None or min(full) <= max(padded)


def _all_points(search: _Search, size: int) -> set[int] | None:
    """Return the points of all sets of this size; None: there are too many sets."""
    whole = search.shape.whole
    sets: Iterable[int] | None = search.shape.symmetry.representatives(whole, size, _MAX_COMPARED)
    if sets is None and count_subsets(whole, size) <= _MAX_COMPARED:
        sets = subsets(whole, size)
    return None if sets is None else {_points(search.shape, search.view, each) for each in sets}


def _best_with(search: _Search, free: int, required: int) -> set[int] | None:
    """Return the sets that contain the required GPUs in the best divisions that have one; None: too many sets."""
    added = search.size - required.bit_count()
    work, most = count_subsets(free & ~required, added), most_work(search.shape)
    if work > most:
        return None
    groups = [required | chosen for chosen in subsets(free & ~required, added)]
    canonical = search.shape.symmetry.canonical
    for rest in {canonical(free & ~group) for group in groups}:
        work += _work(search, rest)
        if work > most:
            return None
    points = {group: _points(search.shape, search.view, group) + _total(search, free & ~group) for group in groups}
    highest = max(points.values())
    return {group for group, found in points.items() if found == highest}


def _some_set_with(required: int, free: int, count: int) -> Sets:
    """Return any ``count`` of the free GPUs together with the required GPUs."""
    found = some_set(free, count)
    if isinstance(found, SomeSet):
        return SomeSet(free | required, count + required.bit_count())
    return ExactSets(tuple(mask | required for mask in found.masks)) if required else found


@lru_cache(maxsize=1 << 14)
def _work(search: _Search, left: int) -> int:
    """Return how many sets the search visits, whether it remembers some or not; above ``most_work`` it is given up."""
    canonical = search.shape.symmetry.canonical
    work, most, lefts = 1, most_work(search.shape), [left]
    known = {left}
    for each in lefts:  # grows during the iteration
        if each.bit_count() <= search.size:
            continue
        found = _first_groups(search, each)
        work += most if found is None else len(found[0])
        if found is None or work > most:
            return most + 1
        fresh = {canonical(each & ~group) for group in found[0]} - known
        known |= fresh
        lefts += fresh
    return work


def _total(search: _Search, left: int) -> int:
    """Return the points of all sets of the best divisions together. Equal sets of GPUs are searched once."""
    return _total_of_canonical(search, search.shape.symmetry.canonical(left))


@lru_cache(maxsize=1 << 14)
def _total_of_canonical(search: _Search, left: int) -> int:
    if left.bit_count() <= search.size:
        return _points(search.shape, search.view, left)
    groups, _ = _first_groups(search, left) or ((), False)
    return max(_points(search.shape, search.view, group) + _total(search, left & ~group) for group in groups)


@lru_cache(maxsize=1 << 14)
def _first_groups(search: _Search, left: int) -> tuple[tuple[int, ...], bool] | None:
    """Return sets such that every division has one of them, or one that is equal up to an exchange within ``left``.

    Also whether exchanges were used. None: there are too many sets.
    """
    count, size, head = left.bit_count(), search.size, left & -left
    sizes = {size, size - -count % size}
    plain = sum(comb(count - 1, each - 1) for each in sizes)
    symmetry, most = search.shape.symmetry, most_work(search.shape)
    found = None if symmetry.is_trivial else symmetry.representatives(left, size, min(plain, most))
    if found is not None and len(found) < plain:
        return tuple(found), True
    if plain > most:
        return None
    return tuple(head | others for each in sizes for others in subsets(left ^ head, each - 1)), False


def _winning_sets(search: _Search, free: int) -> tuple[set[int] | None, bool]:
    """Return the best sets of all best divisions, without padded ones, and whether a padded one may win.

    None: there are too many, or they are unknown.
    """
    may_be_padded = free.bit_count() % search.size > 0 and _padded_may_win(search)
    if _work(search, free) > most_work(search.shape):
        return None, may_be_padded
    winners = _winners(search, free)
    if winners is None:
        return None, may_be_padded
    full = {mask for mask in winners if mask.bit_count() == search.size}
    return full, len(full) < len(winners)


@lru_cache(maxsize=1 << 14)
def _winners(search: _Search, left: int) -> frozenset[int] | None:
    """Return the best sets of all best divisions; None: too many. The number of GPUs determines their padding."""
    if left.bit_count() <= search.size:
        return frozenset({left})
    best, found = _total(search, left), set[int]()
    groups, exchanged = _first_groups(search, left) or ((), False)
    for group in groups:
        rest = left & ~group
        points = _points(search.shape, search.view, group)
        if points + _total(search, rest) == best:
            exchange = search.shape.symmetry.permutation(rest)
            winners = _winners(search, exchange.apply(rest))
            if winners is None:
                return None
            found |= _win(search, group, exchange.inverse.apply_all(winners))
    equal = search.shape.symmetry.equals((left,), found, MAX_SETS) if exchanged else found
    return None if equal is None else frozenset(equal)


def _win(search: _Search, group: int, winners: Iterable[int]) -> set[int]:
    """Return the best sets of the divisions that consist of this set and a best division of the rest.

    ``winners``: of the rest.
    """
    limit = _points(search.shape, search.view, group)
    points = {mask: _points(search.shape, search.view, mask) for mask in winners}
    won = {mask for mask, found in points.items() if found >= limit}
    return won | {group} if any(found <= limit for found in points.values()) else won


@lru_cache(maxsize=1 << 16)
def _points(shape: MachineShape, view: int, group: int) -> int:
    assert shape.points is not None
    points, members = shape.points[view], member_places(group)
    return sum([points[one][other] for at, one in enumerate(members) for other in members[:at]])


class PredictionResult(Enum):
    """The result of a prediction."""

    HIT = "hit"  # the only possible outcome
    AMBIGUOUS = "ambiguous"  # one of several possible outcomes
    MISS = "miss"  # not a possible outcome: the model of the node or the view of it was wrong


def check_prediction(predicted: Sets, actual: int) -> PredictionResult:
    """Compare the set that the kubelet reports for a pod with the prediction."""
    if isinstance(predicted, SomeSet):
        return PredictionResult.MISS if actual & ~predicted.among else PredictionResult.AMBIGUOUS
    if actual not in predicted.masks:
        return PredictionResult.MISS
    return PredictionResult.HIT if len(predicted.masks) == 1 else PredictionResult.AMBIGUOUS
