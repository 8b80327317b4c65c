"""Prediction of the GPUs that a node allocates: all results that the kubelet and NVIDIA's device plugin may give. Pure.

The best-effort policy of the plugin divides the free GPUs into sets of the requested size, in every possible way. It
takes the division with the highest total of points, and the best set of that division; of equal sets the first that it
sees. The kubelet offers the free GPUs in random order. So the prediction is a set of possible outcomes: the best sets
of all best divisions; for each of them, some order of the offer makes it the first.

If the GPUs do not fill the last set, the plugin pads it; a padded set that wins makes the plugin crash
(NVIDIA/go-gpuallocator#80): ``may_crash``. In divisions into seven and more sets, later candidates partly overwrite
earlier sets during the search; then any set may result, and the prediction is ``SomeSet``. So it is if the points of a
pair are unknown, and if the search would take too long. Every prediction contains all possible outcomes.

Source: ``gpuallocator/besteffort_policy.go`` of NVIDIA/go-gpuallocator; ``pkg/kubelet/cm/devicemanager`` and, for
``single_numa``, ``pkg/kubelet/cm/topologymanager`` of Kubernetes.
"""

from __future__ import annotations

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
from scheduler_core.request.device_request import ContainerStep, ContainerSteps, total_devices

_MOST_GROUPS = 6  # sets in a division that the plugin keeps correctly
_MOST_WORK = 25_000  # sets visited in the worst case, over all possible free sets; measured: 150 ms for 8 of 16 GPUs


class Prediction(NamedTuple):
    """The possible outcomes of a request for GPUs. No set at all: the node rejects the pod."""

    sets: Sets
    may_crash: bool = False


class _Best(NamedTuple):
    """The best divisions of some GPUs."""

    points: int  # of all sets of the division together
    winners: frozenset[tuple[int, int, bool]]  # the points of a division's best set, the set, and whether it is padded


def predict_sets(shape: MachineShape, free: Sets, steps: ContainerSteps, *, single_numa: bool = False) -> Prediction:
    """Return the sets of GPUs that a pod may hold after all containers started, if ``free`` may be free at admission.

    ``single_numa``: the node's Topology Manager policy is single-numa-node.
    """
    if isinstance(free, SomeSet):
        devices = total_devices(steps)
        enough = devices <= free.among.bit_count()
        return Prediction(some_set(free.among, devices) if enough else ExactSets(()))
    outcomes: set[int] = set()
    may_crash = False
    if len(free.masks) > 1 and sum(_effort(mask.bit_count(), steps) for mask in free.masks) > _MOST_WORK:
        return Prediction(some_set(free.among, total_devices(steps)))
    for mask in free.masks:
        found = predict_exact(shape, mask, steps, single_numa)
        may_crash |= found.may_crash
        if isinstance(found.sets, SomeSet) or len(outcomes) > MAX_SETS:
            return Prediction(SomeSet(free.among, total_devices(steps)), may_crash)
        outcomes.update(found.sets.masks)
    return Prediction(exact_sets(outcomes), may_crash)


@lru_cache(maxsize=1 << 14)
def predict_exact(shape: MachineShape, free: int, steps: ContainerSteps, single_numa: bool) -> Prediction:
    """Predict for a known set of free GPUs, container by container."""
    states = {(free, 0, 0)}  # free, reusable, held
    may_crash = False
    for step in steps:
        following: set[tuple[int, int, int]] = set()
        for state in states:
            found = _container(shape, state, step, single_numa)
            if found is None:
                return Prediction(SomeSet(free, total_devices(steps)), may_crash)
            after, crash = found
            following |= after
            may_crash |= crash
        if len(following) > MAX_SETS:
            return Prediction(SomeSet(free, total_devices(steps)), may_crash)
        states = following
    return Prediction(exact_sets({held for _, _, held in states}), may_crash)


def _container(
    shape: MachineShape, state: tuple[int, int, int], step: ContainerStep, single_numa: bool
) -> tuple[set[tuple[int, int, int]], bool] | None:
    """Return the possible states after one container got its GPUs; None if there are too many."""
    free, reusable, held = state
    reused = min(step.devices, reusable.bit_count())
    fresh = step.devices - reused
    if count_subsets(reusable, reused) * max(1, count_subsets(free, fresh) if reused else 1) > MAX_SETS:
        return None
    may_crash = False
    if reused or not fresh:
        # The kubelet asks the plugin for sets that contain the reused GPUs: any free GPUs may complete them.
        sets: Sets = some_set(free, fresh)
    else:
        found = preferred_sets(shape, free, fresh) if not single_numa else _aligned(shape, free, fresh)
        sets, may_crash = found
    if isinstance(sets, SomeSet):
        return None
    after = set()
    for kept in subsets(reusable, reused):
        for new in sets.masks:
            left = reusable & ~kept if step.holds_until_end else reusable | new
            after.add((free & ~new, left, held | new))
    return after, may_crash


def _aligned(shape: MachineShape, free: int, size: int) -> Prediction:
    """Predict for the Topology Manager's single-numa-node policy: the lowest NUMA node with enough GPUs, or none.

    If no GPU has a NUMA node the policy has no effect; if only some have, the hints of the plugin are unknown.
    """
    nodes = {shape.numa[place] for place in member_places(shape.whole)}
    if nodes == {None}:
        return preferred_sets(shape, free, size)
    if None in nodes:
        return Prediction(some_set(free, size) if size <= free.bit_count() else ExactSets(()))
    fit = [node for node in nodes if node is not None and shape.on_numa(node, free).bit_count() >= size]
    return preferred_sets(shape, shape.on_numa(min(fit), free), size) if fit else Prediction(ExactSets(()))


@lru_cache(maxsize=1 << 14)
def preferred_sets(shape: MachineShape, free: int, size: int) -> Prediction:
    """Return the sets of ``size`` GPUs that the plugin may prefer, over all orders in which the kubelet offers them."""
    count = free.bit_count()
    if size > count:
        return Prediction(ExactSets(()))
    if size in (1, count):
        return Prediction(some_set(free, size))
    if shape.points is None or -(-count // size) > _MOST_GROUPS or _work(count, size) > _MOST_WORK:
        return Prediction(some_set(free, size))
    winners = _divide(shape, free, size).winners
    whole = frozenset(mask for _, mask, padded in winners if not padded)
    return Prediction(exact_sets(whole), any(padded for _, _, padded in winners))


@lru_cache(maxsize=1 << 16)
def _divide(shape: MachineShape, left: int, size: int) -> _Best:
    """Return the best divisions of these GPUs. Their number determines the padding of the last set."""
    if not left:
        return _Best(0, frozenset())
    padding = -left.bit_count() % size
    head = left & -left
    best, winners = -1, frozenset[tuple[int, int, bool]]()
    for others in {size, size - padding}:
        for chosen in subsets(left ^ head, others - 1):
            group = head | chosen
            points = _points(shape, group)
            tail = _divide(shape, left ^ group, size)
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
def _points(shape: MachineShape, group: int) -> int:
    assert shape.points is not None
    members = list(member_places(group))
    return sum(shape.points[one][other] for at, one in enumerate(members) for other in members[:at])


@lru_cache(maxsize=1 << 10)
def _effort(count: int, steps: ContainerSteps) -> int:
    """Return about how many sets the searches for all containers visit."""
    sizes = [step.devices for step in steps if 1 < step.devices < count]
    searched = [(size, _work(count, size)) for size in sizes]
    return sum(work if work <= _MOST_WORK else comb(count, size) for size, work in searched)


@lru_cache(maxsize=1 << 10)
def _work(count: int, size: int) -> int:
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
