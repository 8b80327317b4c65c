"""Members onto nodes of a few classes: as many as possible, on as few nodes as possible, as well as possible. Pure.

Greedy first: often nothing better can be. Else exact, where that is few enough steps.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.packing.exact import KnownPacking, pack_exactly
from scheduler_core.planner.packing.greedy import improve_packing, pack_greedily
from scheduler_core.planner.packing.node_fit import NodeFit
from scheduler_core.planner.packing.stock import Budget, ClassCounts, Packing, max_members


class PackingBound(NamedTuple):
    """No packing is better than that. Compares as ``Packing.rank``."""

    members: int  # negative
    nodes: int
    points: int  # negative


def best_packing(stock: ClassCounts, fitting: NodeFit, budget: Budget, bound: PackingBound) -> Packing:
    """The best packing of as many of the wanted as fit. ``hope``: what ``bound`` says of it."""
    kinds = range(len(fitting.wanted))
    orders = [kinds, kinds[::-1]][: max(1, len(kinds))]
    tries = [pack_greedily(stock, fitting, budget, order) for order in orders]
    found = min((improve_packing(each, stock, fitting, budget) for each in tries), key=lambda each: each.rank)
    if found.rank <= bound:
        return found._replace(exact=True)
    if budget.is_exhausted:
        return found
    # Where not all fit that may, more may fit on more nodes; and nodes of siblings are not counted.
    good = found.members == -bound.members and not any(each.used for each in stock)
    most = max(sum(max_members(each, fitting)) for each in stock)
    return pack_exactly(stock, fitting, budget, KnownPacking(found.members if good else 0, found.nodes, most)) or found


def packing_bound(stock: ClassCounts, fitting: NodeFit) -> PackingBound:
    """What a packing can be at the very best; of one kind of members the number of nodes is exact."""
    wanted = fitting.wanted
    takes = {each: max_members(each, fitting) for each in stock}
    members = sum(
        min(most, sum(nodes * takes[each][at] for each, nodes in stock.items())) for at, most in enumerate(wanted)
    )
    left, needed, most = members, 0, max(map(sum, takes.values()), default=0)
    for each in sorted(stock, key=lambda each: (not each.used, -sum(takes[each]))):
        if left <= 0:
            break
        nodes = min(stock[each], -(-left // max(1, sum(takes[each]))))
        left -= nodes * sum(takes[each])
        needed += 0 if each.used else nodes
    # On so few nodes each has so many at least.
    least = 1 if any(each.used for each in stock) else most - (needed * most - members)
    per_member = max((fitting.max_points_per_member(each.node_class, least) for each in stock), default=0.0)
    return PackingBound(-members, needed, -int(members * per_member + 0.5))
