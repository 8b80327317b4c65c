"""A good packing in few steps. Pure.

The node that takes most comes first, of several that take all that is left the best; then members move to nodes of
other classes where they do better. With members of one kind it is exact about how many fit and on how many nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import takewhile

from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.stock import Budget, ClassCounts, Packing, Pick, PlacementClass


def pack_greedily(stock: ClassCounts, fitting: NodeFit, budget: Budget, order: Sequence[int]) -> Packing:
    """One class after the other, always the one whose nodes take most of what is left."""
    left, remaining = dict(stock), fitting.wanted
    found = [_prioritized(number, each, remaining, fitting, order) for number, each in enumerate(stock)]
    queue = [each for each in found if each is not None]
    heapify(queue)
    picks: list[Pick] = []
    while queue and any(remaining):
        budget.taken += 1
        _, number, pick = heappop(queue)
        if any(take > have for take, have in zip(pick.load, remaining, strict=True)):
            again = _prioritized(number, pick.of, remaining, fitting, order)
            if again is not None:
                heappush(queue, again)
            continue
        times = min(left[pick.of], *(have // take for have, take in zip(remaining, pick.load, strict=True) if take))
        picks += [pick] * times
        remaining = tuple(have - times * take for have, take in zip(remaining, pick.load, strict=True))
        left[pick.of] -= times
        if left[pick.of]:
            heappush(queue, (_priority(pick, fitting), number, pick))
    return Packing(tuple(picks), exact=False)


_Priority = tuple[int, int, int]


def _prioritized(
    number: int, each: PlacementClass, remaining: Load, fitting: NodeFit, order: Sequence[int]
) -> tuple[_Priority, int, Pick] | None:
    """What comes onto a node of the class. It stays that until there are fewer left of some kind than that."""
    load = fitting.fill_node(each.node_class, remaining, each.allowed, order)
    points = fitting.points_of(each.node_class, load)
    if not any(load) or not isinstance(points, int):
        return None
    pick = Pick(each, load, points)
    return _priority(pick, fitting), number, pick


def _priority(pick: Pick, fitting: NodeFit) -> _Priority:
    """Nodes of siblings first, then those that take most, then those where members do best."""
    return not pick.of.used, -fitting.devices_of(pick.load), -pick.points


def improve_packing(packing: Packing, stock: ClassCounts, fitting: NodeFit, budget: Budget) -> Packing:
    """The same members together, each lot on a node where it does best."""
    free = Counter(stock)
    free.subtract(pick.of for pick in packing.picks)
    better: dict[Load, list[Pick]] = {}
    picks = []
    for pick in packing.picks:
        if pick.load not in better:
            budget.taken += len(free)
            better[pick.load] = _best_first(pick.load, stock, fitting)
        others = takewhile(lambda other, pick=pick: other.points > pick.points, better[pick.load])  # type: ignore[misc]
        best = next((other for other in others if free[other.of] and other.of.used >= pick.of.used), pick)
        free[pick.of] += 1
        free[best.of] -= 1
        picks.append(best)
    return Packing(tuple(picks), exact=False)


def _best_first(load: Load, stock: ClassCounts, fitting: NodeFit) -> list[Pick]:
    """That load on a node of each class that takes it."""
    kinds = [at for at, number in enumerate(load) if number]
    suited = (each for each in stock if all(each.allowed[at] for at in kinds))
    found = ((each, fitting.points_of(each.node_class, load)) for each in suited)
    picks = [Pick(each, load, points) for each, points in found if isinstance(points, int)]
    return sorted(picks, key=lambda pick: -pick.points)
