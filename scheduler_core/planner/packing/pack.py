"""Pack members onto classes of nodes: most members, then fewest nodes, then the best scores. Pure.

Greedy first: its packing often equals the bound. Else exact, if the step budget allows it.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.packing.exact import KnownPacking, pack_exactly
from scheduler_core.planner.packing.greedy import improve_packing, pack_greedily
from scheduler_core.planner.packing.node_fit import NodeFit
from scheduler_core.planner.packing.packings import Budget, ClassCounts, Packing, max_members


class PackingBound(NamedTuple):
    """A bound: no packing is better. Compares with ``Packing.rank``."""

    members: int  # negative
    nodes: int
    points: int  # negative


class PackingRun(NamedTuple):
    """A packing, and the steps that it took."""

    packing: Packing
    greedy_steps: int
    exact_steps: int = 0
    is_cut: bool = False  # with more time or steps the packing may be another

    def is_repeated_by(self, budget: Budget) -> bool:
        """Return whether a run with this budget would give the same packing."""
        if self.is_cut:
            return False
        return not self.exact_steps or (
            budget.share_after(self.greedy_steps) >= self.exact_steps and not budget.is_exhausted
        )


def best_packing(counts: ClassCounts, node_fit: NodeFit, budget: Budget, bound: PackingBound) -> PackingRun:
    """Return the best packing of as many wanted members as fit. ``bound``: its ``packing_bound``."""
    began, kinds = budget.taken, range(len(node_fit.wanted))
    orders = [kinds, kinds[::-1]][: max(1, len(kinds))]
    attempts = [pack_greedily(counts, node_fit, budget, order) for order in orders]
    found = min((improve_packing(each, counts, node_fit, budget) for each in attempts), key=lambda each: each.rank)
    greedy_steps = budget.taken - began
    if found.rank <= bound:
        return PackingRun(found._replace(exact=True), greedy_steps)
    if budget.is_exhausted:
        return PackingRun(found, greedy_steps, is_cut=True)
    # The node count of ``found`` limits others only if it places all members that may fit, without nodes of siblings.
    complete = found.members == -bound.members and not any(each.has_siblings for each in counts)
    most = max(sum(max_members(each, node_fit)) for each in counts)
    known = KnownPacking(found.members if complete else 0, found.nodes, most)
    exact = pack_exactly(counts, node_fit, budget, known)
    exact_steps = budget.taken - began - greedy_steps
    return PackingRun(exact or found, greedy_steps, exact_steps, is_cut=exact is None)


def packing_bound(counts: ClassCounts, node_fit: NodeFit) -> PackingBound:
    """Return a bound of all packings. With members of one kind its number of nodes is exact."""
    wanted = node_fit.wanted
    max_of = {each: max_members(each, node_fit) for each in counts}
    members = sum(
        min(most, sum(nodes * max_of[each][at] for each, nodes in counts.items())) for at, most in enumerate(wanted)
    )
    left, needed, most = members, 0, max(map(sum, max_of.values()), default=0)
    for each in sorted(counts, key=lambda each: (not each.has_siblings, -sum(max_of[each]))):
        if left <= 0:
            break
        nodes = min(counts[each], -(-left // max(1, sum(max_of[each]))))
        left -= nodes * sum(max_of[each])
        needed += 0 if each.has_siblings else nodes
    # With so few nodes each takes at least so many.
    least = 1 if any(each.has_siblings for each in counts) else most - (needed * most - members)
    per_member = max((node_fit.max_points_per_member(each.node_class, least) for each in counts), default=0.0)
    return PackingBound(-members, needed, -int(members * per_member + 0.5))
