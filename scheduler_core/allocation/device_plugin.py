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
take too long. Every prediction contains all possible outcomes.

Source: ``gpuallocator/besteffort_policy.go`` of NVIDIA/go-gpuallocator.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from math import comb
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, exact_sets, member_places, some_set, subsets
from scheduler_core.allocation.machine_shape import MachineShape

_MOST_GROUPS = 6  # sets in a division that the plugin keeps correctly
MOST_WORK = 25_000  # sets visited in the worst case, over all possible free sets; measured: 150 ms for 8 of 16 GPUs


class Prediction(NamedTuple):
    """The possible outcomes of a request for GPUs. No set at all: the node rejects the pod."""

    sets: Sets
    may_crash: bool = False


class _Best(NamedTuple):
    """The best divisions of some GPUs."""

    points: int  # of all sets of the division together
    winners: frozenset[tuple[int, int, bool]]  # the points of a division's best set, the set, and whether it is padded


@lru_cache(maxsize=1 << 14)
def preferred_sets(shape: MachineShape, free: int, size: int, required: int = 0) -> Prediction:
    """Return the sets of ``size`` GPUs that the plugin may prefer, over all orders in which the kubelet offers them.

    ``required``: the GPUs among ``free`` that each set contains.
    """
    count, crashes = free.bit_count(), crashes_on_links(shape, free, size)
    if size > count:
        return Prediction(ExactSets(()))
    if (
        shape.points is None
        or size in (1, count)
        or -(-count // size) > _MOST_GROUPS
        or search_work(count, size) > MOST_WORK
    ):
        return Prediction(_some_set_with(required, free & ~required, size - required.bit_count()), crashes)
    sets, may_crash = set[int](), crashes
    for view in range(len(shape.points)):
        if required:
            sets |= _best_with(shape, view, free, size, required)
            continue
        winners = _divide(shape, view, free, size).winners
        sets |= {mask for _, mask, padded in winners if not padded}
        may_crash |= any(padded for _, _, padded in winners)
    return Prediction(exact_sets(sets), may_crash)


def crashes_on_links(shape: MachineShape, free: int, size: int) -> bool:
    """Return whether the plugin compares two of these GPUs whose links only one of them reports."""
    return size > 1 and any(pair & free == pair for pair in shape.one_sided_links)


def _best_with(shape: MachineShape, view: int, free: int, size: int, required: int) -> set[int]:
    """Return the sets that contain the required GPUs in the best divisions that have such a set."""
    points: dict[int, int] = {}
    for chosen in subsets(free & ~required, size - required.bit_count()):
        group = required | chosen
        points[group] = _points(shape, view, group) + _divide(shape, view, free & ~group, size).points
    most = max(points.values())
    return {group for group, found in points.items() if found == most}


def _some_set_with(required: int, free: int, count: int) -> Sets:
    """Return any ``count`` of the free GPUs together with the required GPUs."""
    found = some_set(free, count)
    if isinstance(found, SomeSet):
        return SomeSet(free | required, count + required.bit_count())
    return ExactSets(tuple(mask | required for mask in found.masks)) if required else found


@lru_cache(maxsize=1 << 16)
def _divide(shape: MachineShape, view: int, left: int, size: int) -> _Best:
    """Return the best divisions of these GPUs. Their number determines the padding of the last set."""
    if not left:
        return _Best(0, frozenset())
    padding = -left.bit_count() % size
    head = left & -left
    best, winners = -1, frozenset[tuple[int, int, bool]]()
    for others in {size, size - padding}:
        for chosen in subsets(left ^ head, others - 1):
            group = head | chosen
            points = _points(shape, view, group)
            tail = _divide(shape, view, left ^ group, size)
            points_of_all = points + tail.points
            if points_of_all >= best:
                found = _win(points, group, others < size, tail)
                winners = found if points_of_all > best else winners | found
                best = points_of_all
    return _Best(best, winners)


def _win(points: int, group: int, padded: bool, tail: _Best) -> frozenset[tuple[int, int, bool]]:
    """Return the best sets of the divisions that consist of this set and a best division of the rest."""
    if not tail.winners:
        return frozenset({(points, group, padded)})
    won = {winner for winner in tail.winners if winner[0] >= points}
    if any(winner[0] <= points for winner in tail.winners):
        won.add((points, group, padded))
    return frozenset(won)


@lru_cache(maxsize=1 << 16)
def _points(shape: MachineShape, view: int, group: int) -> int:
    assert shape.points is not None
    points, members = shape.points[view], member_places(group)
    return sum(points[one][other] for at, one in enumerate(members) for other in members[:at])


@lru_cache(maxsize=1 << 10)
def search_work(count: int, size: int) -> int:
    """Return how many sets a search among ``count`` GPUs visits at most: for each remainder, its first sets."""
    work = 0
    lefts = {count}
    while lefts:
        left = lefts.pop()
        padding = -left % size
        for taken in {size, size - padding} if left else ():
            work += comb(count - (left < count), left) * comb(left - 1, taken - 1)
            lefts |= {left - taken} if taken <= left else set()
    return work


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
