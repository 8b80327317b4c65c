"""Which GPUs the node will hand out: every answer that the kubelet and NVIDIA's device plugin may give. Pure.

The plugin's best-effort policy divides the free GPUs into sets of the size asked for, in every way there is, takes the
division with the highest total of points, and of that the best set; of equals the first it sees. The kubelet offers
the free GPUs in random order. So what it will take is a set of possible outcomes: the best sets of all best divisions,
each of which some order of the offer brings up first.

Where GPUs do not fill the last set, the plugin pads it, and a padded set that wins makes the plugin crash
(NVIDIA/go-gpuallocator#80): ``may_crash``. Divisions into seven and more sets are partly overwritten by later
candidates while it searches: then any set may come out, and ``AnyOf`` says so, as it does where the points of a pair
are not known and where the search would take too long. Every answer here contains all that can happen.

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

_MOST_GROUPS = 6  # sets in a division that the plugin remembers right
_MOST_WORK = 25_000  # sets looked at, at worst, over all that may be free; measured: 150 ms for half of 16 GPUs


class Prediction(NamedTuple):
    """What may come of a request for GPUs. No set at all: the node rejects the pod."""

    sets: Sets
    may_crash: bool = False


class _Best(NamedTuple):
    """The best divisions of some GPUs."""

    points: int  # of all sets of the division together
    winners: frozenset[tuple[int, int, bool]]  # points of a division's best set, that set, whether it is padded


def predict_sets(shape: MachineShape, free: Sets, program: ContainerSteps, *, single_numa: bool = False) -> Prediction:
    """The sets of GPUs that a pod may hold in the end, given what may be free when its node admits it.

    ``single_numa``: the node's Topology Manager policy is single-numa-node.
    """
    if isinstance(free, SomeSet):
        wanted = total_devices(program)
        enough = wanted <= free.among.bit_count()
        return Prediction(some_set(free.among, wanted) if enough else ExactSets(()))
    outcomes: set[int] = set()
    may_crash = False
    if len(free.masks) > 1 and sum(_effort(mask.bit_count(), program) for mask in free.masks) > _MOST_WORK:
        return Prediction(some_set(free.among, total_devices(program)))
    for mask in free.masks:
        found = predict_exact(shape, mask, program, single_numa)
        may_crash |= found.may_crash
        if isinstance(found.sets, SomeSet) or len(outcomes) > MAX_SETS:
            return Prediction(SomeSet(free.among, total_devices(program)), may_crash)
        outcomes.update(found.sets.masks)
    return Prediction(exact_sets(outcomes), may_crash)


@lru_cache(maxsize=1 << 14)
def predict_exact(shape: MachineShape, free: int, program: ContainerSteps, single_numa: bool) -> Prediction:
    """The same where it is known what is free. Container by container: what each may get, what that leaves the next."""
    worlds = {(free, 0, 0)}  # free, reusable, held
    may_crash = False
    for step in program:
        following: set[tuple[int, int, int]] = set()
        for world in worlds:
            found = _container(shape, world, step, single_numa)
            if found is None:
                return Prediction(SomeSet(free, total_devices(program)), may_crash)
            after, crash = found
            following |= after
            may_crash |= crash
        if len(following) > MAX_SETS:
            return Prediction(SomeSet(free, total_devices(program)), may_crash)
        worlds = following
    return Prediction(exact_sets({held for _, _, held in worlds}), may_crash)


def _container(
    shape: MachineShape, world: tuple[int, int, int], step: ContainerStep, single_numa: bool
) -> tuple[set[tuple[int, int, int]], bool] | None:
    """What may be after one container got its GPUs; None where that is too much to list."""
    free, reusable, held = world
    again = min(step.devices, reusable.bit_count())
    fresh = step.devices - again
    if count_subsets(reusable, again) * max(1, count_subsets(free, fresh) if again else 1) > MAX_SETS:
        return None
    may_crash = False
    if again or not fresh:
        # The plugin is asked for sets that contain the reused ones: any of the free ones may complete them.
        sets: Sets = some_set(free, fresh)
    else:
        found = preferred_sets(shape, free, fresh) if not single_numa else _aligned(shape, free, fresh)
        sets, may_crash = found
    if isinstance(sets, SomeSet):
        return None
    after = set()
    for kept in subsets(reusable, again):
        for new in sets.masks:
            left = reusable & ~kept if step.holds_until_end else reusable | new
            after.add((free & ~new, left, held | new))
    return after, may_crash


def _aligned(shape: MachineShape, free: int, size: int) -> Prediction:
    """Under the Topology Manager's single-numa-node policy: from the lowest NUMA node that has enough, or not at all.

    Where no GPU says its NUMA node the policy has no say; where only some do, we do not know what the plugin told.
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
    """The sets of ``size`` GPUs that the plugin may prefer, over all orders in which they may be offered."""
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
    """The best divisions of these GPUs. How many are missing in the last set follows from their number."""
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
    """The best sets of the divisions that are this set and one of the best divisions of the rest."""
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
def _effort(count: int, program: ContainerSteps) -> int:
    """How many sets the searches of all containers look at, about; what is not searched for is not counted."""
    sizes = [step.devices for step in program if 1 < step.devices < count]
    searched = [(size, _work(count, size)) for size in sizes]
    return sum(work if work <= _MOST_WORK else comb(count, size) for size, work in searched)


@lru_cache(maxsize=1 << 10)
def _work(count: int, size: int) -> int:
    """How many sets a search among ``count`` GPUs looks at, at most: for each part left over, its first sets."""
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
    """What became of a prediction."""

    HIT = "hit"  # there was one possible outcome, and it came
    AMBIGUOUS = "ambiguous"  # it was one of several
    MISS = "miss"  # it was none of them: our model of the node is wrong, or our view of it was


def check_prediction(predicted: Sets, actual: int) -> PredictionResult:
    """Hold the set that a pod really got, as the kubelet says, against what was predicted."""
    if isinstance(predicted, SomeSet):
        return PredictionResult.MISS if actual & ~predicted.among else PredictionResult.AMBIGUOUS
    if actual not in predicted.masks:
        return PredictionResult.MISS
    return PredictionResult.HIT if len(predicted.masks) == 1 else PredictionResult.AMBIGUOUS
