"""Members onto nodes of a few classes: as many as possible, on as few nodes as possible, as well as possible. Pure.

Greedy first: often nothing better can be. Else exact, where that is few enough steps.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.packing.exact import Known, exhaustive
from scheduler_core.planner.packing.greedy import greedy, improved
from scheduler_core.planner.packing.node_fit import Fitting
from scheduler_core.planner.packing.stock import Budget, Packing, Stock, at_most


class Bound(NamedTuple):
    """No packing is better than that. Compares as ``Packing.rank``."""

    members: int  # negative
    nodes: int
    points: int  # negative


def packed(stock: Stock, fitting: Fitting, budget: Budget, hope: Bound) -> Packing:
    """The best packing of as many of the wanted as fit. ``hope``: what ``bound`` says of it."""
    kinds = range(len(fitting.wanted))
    orders = [kinds, kinds[::-1]][: max(1, len(kinds))]
    tries = [greedy(stock, fitting, budget, order) for order in orders]
    found = min((improved(each, stock, fitting, budget) for each in tries), key=lambda each: each.rank)
    if found.rank <= hope:
        return found._replace(exact=True)
    if budget.late:
        return found
    # Where not all fit that may, more may fit on more nodes; and nodes of siblings are not counted.
    good = found.members == -hope.members and not any(each.used for each in stock)
    most = max(sum(at_most(each, fitting)) for each in stock)
    return exhaustive(stock, fitting, budget, Known(found.members if good else 0, found.nodes, most)) or found


def bound(stock: Stock, fitting: Fitting) -> Bound:
    """What a packing can be at the very best; of one kind of members the number of nodes is exact."""
    wanted = fitting.wanted
    takes = {each: at_most(each, fitting) for each in stock}
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
    per_member = max((fitting.per_member(each.ground, least) for each in stock), default=0.0)
    return Bound(-members, needed, -int(members * per_member + 0.5))
