"""Where a gang goes: domain by domain, the narrowest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduler_core.planner.packing.groups import Crew
from scheduler_core.planner.packing.model import NodeView, Options
from scheduler_core.planner.packing.node_filter import Bars
from scheduler_core.planner.packing.node_fit import Fitting
from scheduler_core.planner.packing.nodes import Site, grouped, sites_of, stock_of
from scheduler_core.planner.packing.pack import Bound, bound, packed
from scheduler_core.planner.packing.stock import Budget, Class, Packing, Stock
from scheduler_core.planner.packing.topology_domains import Place, Rung, place_of, rungs


class Found(NamedTuple):
    """The best there is."""

    packing: Packing = Packing()
    sites: Sequence[Site] = ()  # among which its nodes are
    exact: bool = True  # nothing better exists

    def better(self, other: Found) -> bool:
        """Whether more members have a place."""
        return self.packing.members > other.packing.members


class _Domain(NamedTuple):
    place: Place
    sites: Sequence[Site]
    stock: Stock


class Search:
    """For one gang on one snapshot."""

    def __init__(self, crew: Crew, view: NodeView, options: Options) -> None:
        self._crew, self._view, self._options = crew, view, options
        self.bars = [Bars(group.rules, group.closed) for group in crew.groups]
        self.fitting = Fitting(view.table, [group.kind for group in crew.groups], crew.wanted, crew.apart)
        self.sites = sites_of(view, options, self.fitting, self.bars)
        self.budget = Budget(options.steps, options.out_of_time)
        self._siblings = [seat.node for seat in options.placed if seat.node in view.rules]
        self._packings: dict[frozenset[tuple[Class, int]], Packing] = {}
        self._bounds: dict[frozenset[tuple[Class, int]], Bound] = {}

    def best(self) -> Found:
        """Rung after rung, until all have a place; else the most that have one."""
        everybody = sum(self._crew.wanted)
        best, exact = Found(), True
        ladder = rungs(self._crew.required, self._crew.preferred, self._options.levels)
        for rung in ladder:
            last = rung == ladder[-1]
            if best.packing.members == everybody:
                break
            if self.budget.late and not last:  # the widest is where most fit
                exact = False
                continue
            found = self._at(rung, self._least(best, last=last))
            exact = exact and found.exact
            best = found if found.better(best) else best
        return best._replace(exact=exact)

    def _least(self, best: Found, *, last: bool) -> int:
        """Fewer members with a place are of no interest. At last they are, for people."""
        needed = self._crew.minimum - len(self._crew.others)
        return max(best.packing.members + 1, 1 if last else needed)

    def _at(self, rung: Rung, least: int) -> Found:
        """The best of the domains at those levels. Those that may be best are looked at first."""
        best: tuple[tuple[object, ...], Found] | None = None
        exact = True
        for hope, domain in sorted(self._domains(rung, least), key=lambda each: (each[0], each[1].place)):
            if best is not None and hope > best[0][: len(hope)]:
                break
            if best is not None and self.budget.late:
                exact = False
                break
            packing = self._packed(domain.stock)
            exact = exact and packing.exact
            if packing.members >= least:
                members, nodes, points = packing.rank
                rank = (members, hope[1], nodes, points, self._spare(domain.stock), domain.place)
                if best is None or rank < best[0]:
                    best = rank, Found(packing, domain.sites)
        return (Found() if best is None else best[1])._replace(exact=exact)

    def _domains(self, rung: Rung, least: int) -> Iterator[tuple[tuple[float, ...], _Domain]]:
        """Those that may have room for so many, and how good they are at the very best."""
        homes = self._homes(rung)
        for place, sites in grouped(self._reachable(), rung, self._view, self._options.levels).items():
            if self._siblings and place not in homes:
                continue
            stock = stock_of(sites)
            members, nodes, points = self._bound(stock)
            if -members >= least:
                yield (members, -homes[place], nodes, points), _Domain(place, sites, stock)

    def _reachable(self) -> Sequence[Site]:
        """Where required, what is in one domain with the siblings."""
        required = self._crew.required
        if required is None or not self._siblings:
            return self.sites
        homes = self._homes((required,))
        if len(homes) != 1 or homes.total() < len(self._siblings):
            return ()
        return grouped(self.sites, (required,), self._view, self._options.levels).get(next(iter(homes)), ())

    def _homes(self, rung: Rung) -> Counter[Place]:
        """How many siblings are in which domain."""
        rules, levels = self._view.rules, self._options.levels
        places = (place_of(rules[node].metadata.labels or {}, rung, levels) for node in self._siblings if node)
        return Counter(place for place in places if place is not None)

    def _bound(self, stock: Stock) -> Bound:
        key = frozenset(stock.items())
        if key not in self._bounds:
            self._bounds[key] = bound(stock, self.fitting)
        return self._bounds[key]

    def _packed(self, stock: Stock) -> Packing:
        """Domains whose nodes are alike share it."""
        key = frozenset(stock.items())
        if key not in self._packings:
            self._packings[key] = packed(stock, self.fitting, self.budget, self._bound(stock))
        return self._packings[key]

    def _spare(self, stock: Stock) -> int:
        """Devices that the gang could have there; of equals the domain with fewer comes first."""
        wanted, order = self._crew.wanted, range(len(self._crew.wanted))
        loads = {of: self.fitting.filled(of.ground, wanted, of.allowed, order) for of in stock}
        return sum(nodes * self.fitting.devices(loads[of]) for of, nodes in stock.items())
