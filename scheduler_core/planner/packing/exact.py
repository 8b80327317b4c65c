"""The best packing there is, where that is few enough steps. Pure.

Of each number of members the best way to place them is worked out, node after node; a way that cannot become as good as
a packing that is known already is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, gt
from typing import NamedTuple

from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.stock import Budget, ClassCounts, Packing, Pick


class _PartialPacking(NamedTuple):
    """The best way so far to place some members."""

    nodes: int
    minus: int  # points, negative
    last: Pick | None = None
    before: _PartialPacking | None = None

    def picks(self) -> Iterator[Pick]:
        way: _PartialPacking | None = self
        while way is not None and way.last is not None:
            yield way.last
            way = way.before


class KnownPacking(NamedTuple):
    """A packing that there is: only what may become as good is followed."""

    members: int
    nodes: int
    most: int  # members that one more node takes

    def may_improve(self, load: Load, nodes: int) -> bool:
        """Whether so many members on so many nodes may become as good."""
        return sum(load) + max(0, self.nodes - nodes) * self.most >= self.members


def pack_exactly(stock: ClassCounts, fitting: NodeFit, budget: Budget, known: KnownPacking) -> Packing | None:
    """None where it takes too many steps."""
    left, wanted = budget.share, fitting.wanted
    ways: dict[Load, _PartialPacking] = {(0,) * len(wanted): _PartialPacking(0, 0)}
    for each, nodes in stock.items():
        picks = [Pick(each, *found) for found in fitting.loads(each.node_class, wanted, each.allowed)]
        for _ in range(min(nodes, sum(wanted))):
            steps = len(ways) * len(picks)
            budget.taken += min(steps, max(left, 0))
            left -= steps
            if left < 0 or budget.is_exhausted:
                return None
            if not _one_more(ways, picks, wanted, known):
                break
    best = min(ways, key=lambda load: (-sum(load), ways[load].nodes, ways[load].minus, load))
    return Packing(tuple(ways[best].picks()))


def _one_more(ways: dict[Load, _PartialPacking], picks: Sequence[Pick], wanted: Load, known: KnownPacking) -> bool:
    """Use one more node. Answers whether that made anything better."""
    better: dict[Load, _PartialPacking] = {}
    for load, way in ways.items():
        for pick in picks:
            after = tuple(map(add, load, pick.load))
            nodes, minus = way.nodes + (not pick.of.used), way.minus - pick.points
            if any(map(gt, after, wanted)) or not known.may_improve(after, nodes):
                continue
            other = better.get(after) or ways.get(after)
            if other is None or (nodes, minus) < (other.nodes, other.minus):
                better[after] = _PartialPacking(nodes, minus, pick, way)
    ways.update(better)
    return bool(better)
