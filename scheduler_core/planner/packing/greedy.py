"""A good packing in few steps. Pure.

Greedy: next is the node that takes most members, among equal nodes the one with the best score. Then improvement: each
group of members moves to a node of another class with a better score. With members of one kind the number of placed
members and of nodes is optimal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import takewhile

from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.packings import Budget, ClassCounts, Packing, Pick, PlacementClass


def pack_greedily(counts: ClassCounts, node_fit: NodeFit, budget: Budget, order: Sequence[int]) -> Packing:
    """Return a packing that always uses next the class whose nodes take most of the remaining members."""
    left, remaining = dict(counts), node_fit.wanted
    found = [_prioritized(number, each, remaining, node_fit, order) for number, each in enumerate(counts)]
    queue = [each for each in found if each is not None]
    heapify(queue)
    picks: list[Pick] = []
    while queue and any(remaining):
        budget.taken += 1
        _, number, pick = heappop(queue)
        if any(take > have for take, have in zip(pick.load, remaining, strict=True)):
            updated = _prioritized(number, pick.of, remaining, node_fit, order)
            if updated is not None:
                heappush(queue, updated)
            continue
        times = min(left[pick.of], *(have // take for have, take in zip(remaining, pick.load, strict=True) if take))
        picks += [pick] * times
        remaining = tuple(have - times * take for have, take in zip(remaining, pick.load, strict=True))
        left[pick.of] -= times
        if left[pick.of]:
            heappush(queue, (_priority(pick, node_fit), number, pick))
    return Packing(tuple(picks), exact=False)


_Priority = tuple[int, int, int]


def _prioritized(
    number: int, each: PlacementClass, remaining: Load, node_fit: NodeFit, order: Sequence[int]
) -> tuple[_Priority, int, Pick] | None:
    """Return what a node of the class takes. It is valid while enough members of each kind remain."""
    load = node_fit.fill_node(each.node_class, remaining, each.allowed, order)
    points = node_fit.points_of(each.node_class, load)
    if not any(load) or not isinstance(points, int):
        return None
    pick = Pick(each, load, points)
    return _priority(pick, node_fit), number, pick


def _priority(pick: Pick, node_fit: NodeFit) -> _Priority:
    """Return the sort key: nodes of siblings first, then nodes that take most devices, then the best score."""
    return not pick.of.has_siblings, -node_fit.devices_of(pick.load), -pick.points


def improve_packing(packing: Packing, counts: ClassCounts, node_fit: NodeFit, budget: Budget) -> Packing:
    """Return the packing with each group of members on the node where it has the best score."""
    free = Counter(counts)
    free.subtract(pick.of for pick in packing.picks)
    better: dict[Load, list[Pick]] = {}
    picks = []
    for pick in packing.picks:
        if pick.load not in better:
            budget.taken += len(free)
            better[pick.load] = _best_first(pick.load, counts, node_fit)
        others = takewhile(lambda other, pick=pick: other.points > pick.points, better[pick.load])  # type: ignore[misc]
        best = next(
            (other for other in others if free[other.of] and other.of.has_siblings >= pick.of.has_siblings), pick
        )
        free[pick.of] += 1
        free[best.of] -= 1
        picks.append(best)
    return Packing(tuple(picks), exact=False)


def _best_first(load: Load, counts: ClassCounts, node_fit: NodeFit) -> list[Pick]:
    """Return picks of a load on each class that takes it, best score first."""
    kinds = [at for at, number in enumerate(load) if number]
    suited = (each for each in counts if all(each.allowed[at] for at in kinds))
    found = ((each, node_fit.points_of(each.node_class, load)) for each in suited)
    picks = [Pick(each, load, points) for each, points in found if isinstance(points, int)]
    return sorted(picks, key=lambda pick: -pick.points)
