"""The best packing, if it is found within the step budget. Pure.

Dynamic programming, node after node: the best partial packing for each number of members of each kind. Partial packings
that cannot become as good as a known packing are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, gt
from typing import NamedTuple

from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.packings import Budget, ClassCounts, Packing, Pick


class _PartialPacking(NamedTuple):
    """The best packing so far of some members."""

    nodes: int
    negative_points: int  # points, negative
    last: Pick | None = None
    before: _PartialPacking | None = None

    def picks(self) -> Iterator[Pick]:
        partial: _PartialPacking | None = self
        while partial is not None and partial.last is not None:
            yield partial.last
            partial = partial.before


class KnownPacking(NamedTuple):
    """A packing found before: a partial packing is kept only if it may become as good."""

    members: int
    nodes: int
    most: int  # members that one node takes at most

    def may_improve(self, load: Load, nodes: int) -> bool:
        """Return whether a partial packing may become as good."""
        return sum(load) + max(0, self.nodes - nodes) * self.most >= self.members


def pack_exactly(counts: ClassCounts, node_fit: NodeFit, budget: Budget, known: KnownPacking) -> Packing | None:
    """Return the best packing; None: it takes too many steps."""
    remaining, wanted = budget.share, node_fit.wanted
    partials: dict[Load, _PartialPacking] = {(0,) * len(wanted): _PartialPacking(0, 0)}
    for each, nodes in counts.items():
        picks = [Pick(each, *found) for found in node_fit.loads(each.node_class, wanted, each.allowed)]
        for _ in range(min(nodes, sum(wanted))):
            steps = len(partials) * len(picks)
            budget.taken += min(steps, max(remaining, 0))
            remaining -= steps
            if remaining < 0 or budget.is_exhausted:
                return None
            if not _extend(partials, picks, wanted, known):
                break
    best = min(partials, key=lambda load: (-sum(load), partials[load].nodes, partials[load].negative_points, load))
    return Packing(tuple(partials[best].picks()))


def _extend(partials: dict[Load, _PartialPacking], picks: Sequence[Pick], wanted: Load, known: KnownPacking) -> bool:
    """Extend the partial packings by one more node. Return whether any of them improved."""
    better: dict[Load, _PartialPacking] = {}
    for load, partial in partials.items():
        for pick in picks:
            after = tuple(map(add, load, pick.load))
            nodes, negative_points = partial.nodes + (not pick.of.has_siblings), partial.negative_points - pick.points
            if any(map(gt, after, wanted)) or not known.may_improve(after, nodes):
                continue
            other = better.get(after) or partials.get(after)
            if other is None or (nodes, negative_points) < (other.nodes, other.negative_points):
                better[after] = _PartialPacking(nodes, negative_points, pick, partial)
    partials.update(better)
    return bool(better)
