"""Where a gang goes: domain by domain, the narrowest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduler_core.planner.packing.groups import MemberGroups
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import NodeFit
from scheduler_core.planner.packing.nodes import GangNode, class_counts, gang_nodes, group_by_domain
from scheduler_core.planner.packing.pack import PackingBound, best_packing, packing_bound
from scheduler_core.planner.packing.stock import Budget, ClassCounts, Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath, SearchLevel, domain_path_of, search_levels


class SearchResult(NamedTuple):
    """The best there is."""

    packing: Packing = Packing()
    sites: Sequence[GangNode] = ()  # among which its nodes are
    exact: bool = True  # nothing better exists

    def is_better(self, other: SearchResult) -> bool:
        """Whether more members have a place."""
        return self.packing.members > other.packing.members


class _Domain(NamedTuple):
    place: DomainPath
    sites: Sequence[GangNode]
    stock: ClassCounts


class Search:
    """For one gang on one snapshot."""

    def __init__(self, crew: MemberGroups, view: NodeView, options: PlanOptions) -> None:
        self._crew, self._view, self._options = crew, view, options
        self.node_filters = [NodeFilter(group.rules, group.excluded_nodes) for group in crew.groups]
        self.node_fit = NodeFit(view.table, [group.kind for group in crew.groups], crew.wanted, crew.conflicting_kinds)
        self.sites = gang_nodes(view, options, self.node_fit, self.node_filters)
        self.budget = Budget(options.steps, options.out_of_time)
        self._siblings = [seat.node for seat in options.placed if seat.node in view.rules]
        self._packings: dict[frozenset[tuple[PlacementClass, int]], Packing] = {}
        self._bounds: dict[frozenset[tuple[PlacementClass, int]], PackingBound] = {}

    def best_result(self) -> SearchResult:
        """Rung after rung, until all have a place; else the most that have one."""
        everybody = sum(self._crew.wanted)
        best, exact = SearchResult(), True
        ladder = search_levels(self._crew.required, self._crew.preferred, self._options.levels)
        for rung in ladder:
            last = rung == ladder[-1]
            if best.packing.members == everybody:
                break
            if self.budget.is_exhausted and not last:  # the widest is where most fit
                exact = False
                continue
            found = self._at(rung, self._least(best, last=last))
            exact = exact and found.exact
            best = found if found.is_better(best) else best
        return best._replace(exact=exact)

    def _least(self, best: SearchResult, *, last: bool) -> int:
        """Fewer members with a place are of no interest. At last they are, for people."""
        needed = self._crew.minimum - len(self._crew.without_gpus)
        return max(best.packing.members + 1, 1 if last else needed)

    def _at(self, rung: SearchLevel, least: int) -> SearchResult:
        """The best of the domains at those levels. Those that may be best are looked at first."""
        best: tuple[tuple[object, ...], SearchResult] | None = None
        exact = True
        for hope, domain in sorted(self._domains(rung, least), key=lambda each: (each[0], each[1].place)):
            if best is not None and hope > best[0][: len(hope)]:
                break
            if best is not None and self.budget.is_exhausted:
                exact = False
                break
            packing = self._packed(domain.stock)
            exact = exact and packing.exact
            if packing.members >= least:
                members, nodes, points = packing.rank
                rank = (members, hope[1], nodes, points, self._spare(domain.stock), domain.place)
                if best is None or rank < best[0]:
                    best = rank, SearchResult(packing, domain.sites)
        return (SearchResult() if best is None else best[1])._replace(exact=exact)

    def _domains(self, rung: SearchLevel, least: int) -> Iterator[tuple[tuple[float, ...], _Domain]]:
        """Those that may have room for so many, and how good they are at the very best."""
        homes = self._homes(rung)
        for place, sites in group_by_domain(self._reachable(), rung, self._view, self._options.levels).items():
            if self._siblings and place not in homes:
                continue
            stock = class_counts(sites)
            members, nodes, points = self._bound(stock)
            if -members >= least:
                yield (members, -homes[place], nodes, points), _Domain(place, sites, stock)

    def _reachable(self) -> Sequence[GangNode]:
        """Where required, what is in one domain with the siblings."""
        required = self._crew.required
        if required is None or not self._siblings:
            return self.sites
        homes = self._homes((required,))
        if len(homes) != 1 or homes.total() < len(self._siblings):
            return ()
        return group_by_domain(self.sites, (required,), self._view, self._options.levels).get(next(iter(homes)), ())

    def _homes(self, rung: SearchLevel) -> Counter[DomainPath]:
        """How many siblings are in which domain."""
        rules, levels = self._view.rules, self._options.levels
        places = (domain_path_of(rules[node].metadata.labels or {}, rung, levels) for node in self._siblings if node)
        return Counter(place for place in places if place is not None)

    def _bound(self, stock: ClassCounts) -> PackingBound:
        key = frozenset(stock.items())
        if key not in self._bounds:
            self._bounds[key] = packing_bound(stock, self.node_fit)
        return self._bounds[key]

    def _packed(self, stock: ClassCounts) -> Packing:
        """Domains whose nodes are alike share it."""
        key = frozenset(stock.items())
        if key not in self._packings:
            self._packings[key] = best_packing(stock, self.node_fit, self.budget, self._bound(stock))
        return self._packings[key]

    def _spare(self, stock: ClassCounts) -> int:
        """Devices that the gang could have there; of equals the domain with fewer comes first."""
        wanted, order = self._crew.wanted, range(len(self._crew.wanted))
        loads = {of: self.node_fit.fill_node(of.node_class, wanted, of.allowed, order) for of in stock}
        return sum(nodes * self.node_fit.devices_of(loads[of]) for of, nodes in stock.items())
