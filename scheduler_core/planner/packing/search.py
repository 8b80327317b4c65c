"""Search of a gang's domain: level by level, the narrowest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduler_core.planner.packing.groups import MemberGroups
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import NodeFit
from scheduler_core.planner.packing.nodes import GangNode, class_counts, gang_nodes, group_by_domain
from scheduler_core.planner.packing.pack import PackingBound, best_packing, packing_bound
from scheduler_core.planner.packing.stock import Budget, ClassCounts, Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath, SearchLevel, domain_path_of, search_levels


class SearchResult(NamedTuple):
    """The best packing found."""

    packing: Packing = Packing()
    candidates: Sequence[GangNode] = ()  # nodes that the packing may use
    exact: bool = True  # no better packing exists

    def is_better(self, other: SearchResult) -> bool:
        """Return whether more members are placed."""
        return self.packing.members > other.packing.members


class _Domain(NamedTuple):
    path: DomainPath
    candidates: Sequence[GangNode]
    counts: ClassCounts


class Search:
    """Search for one gang on one snapshot."""

    def __init__(self, gang: MemberGroups, view: NodeView, options: PlanOptions, nodes: NodeClasses) -> None:
        """``nodes``: of this view."""
        self._gang, self._view, self._options = gang, view, options
        self.node_filters = [NodeFilter(group.rules, group.excluded_nodes) for group in gang.groups]
        self.node_fit = NodeFit(nodes, [group.kind for group in gang.groups], gang.wanted, gang.conflicting_kinds)
        self.candidates = gang_nodes(view, options, nodes, self.node_filters)
        self.budget = Budget(options.steps, options.out_of_time)
        self._siblings = [seat.node for seat in options.placed if seat.node in view.rules]
        self._packings: dict[frozenset[tuple[PlacementClass, int]], Packing] = {}
        self._bounds: dict[frozenset[tuple[PlacementClass, int]], PackingBound] = {}

    def best_result(self) -> SearchResult:
        """Return the result of the first level that places all members; else the result that places most."""
        all_members = sum(self._gang.wanted)
        best, exact = SearchResult(), True
        levels = search_levels(self._gang.required, self._gang.preferred, self._options.levels)
        for level in levels:
            last = level == levels[-1]
            if best.packing.members == all_members:
                break
            if self.budget.is_exhausted and not last:  # most members fit in the widest
                exact = False
                continue
            found = self._best_at(level, self._needed_members(best, last=last))
            exact = exact and found.exact
            best = found if found.is_better(best) else best
        return best._replace(exact=exact)

    def _needed_members(self, best: SearchResult, *, last: bool) -> int:
        """Return the members that a result must place to matter. At the widest level one is enough: people see it."""
        needed = self._gang.minimum - len(self._gang.without_gpus)
        return max(best.packing.members + 1, 1 if last else needed)

    def _best_at(self, level: SearchLevel, at_least: int) -> SearchResult:
        """Return the best result among the domains of a level. Domains with the best bound are tried first."""
        best: tuple[tuple[object, ...], SearchResult] | None = None
        exact = True
        for bound, domain in sorted(self._domains(level, at_least), key=lambda each: (each[0], each[1].path)):
            if best is not None and bound > best[0][: len(bound)]:
                break
            if best is not None and self.budget.is_exhausted:
                exact = False
                break
            packing = self._packed(domain.counts)
            exact = exact and packing.exact
            if packing.members >= at_least:
                members, nodes, points = packing.rank
                rank = (members, bound[1], nodes, points, self._spare(domain.counts), domain.path)
                if best is None or rank < best[0]:
                    best = rank, SearchResult(packing, domain.candidates)
        return (SearchResult() if best is None else best[1])._replace(exact=exact)

    def _domains(self, level: SearchLevel, at_least: int) -> Iterator[tuple[tuple[float, ...], _Domain]]:
        """Yield the domains that may take so many members, with the bound of each."""
        siblings_in = self._siblings_by_domain(level)
        for path, candidates in group_by_domain(self._reachable(), level, self._view, self._options.levels).items():
            if self._siblings and path not in siblings_in:
                continue
            counts = class_counts(candidates)
            members, nodes, points = self._bound(counts)
            if -members >= at_least:
                yield (members, -siblings_in[path], nodes, points), _Domain(path, candidates, counts)

    def _reachable(self) -> Sequence[GangNode]:
        """Return the candidates; with a required level only those in the domain of the placed siblings."""
        required = self._gang.required
        if required is None or not self._siblings:
            return self.candidates
        siblings_in = self._siblings_by_domain((required,))
        if len(siblings_in) != 1 or siblings_in.total() < len(self._siblings):
            return ()
        return group_by_domain(self.candidates, (required,), self._view, self._options.levels).get(
            next(iter(siblings_in)), ()
        )

    def _siblings_by_domain(self, level: SearchLevel) -> Counter[DomainPath]:
        """Count placed siblings by domain."""
        rules, levels = self._view.rules, self._options.levels
        found = (domain_path_of(rules[node].metadata.labels or {}, level, levels) for node in self._siblings if node)
        return Counter(path for path in found if path is not None)

    def _bound(self, counts: ClassCounts) -> PackingBound:
        key = frozenset(counts.items())
        if key not in self._bounds:
            self._bounds[key] = packing_bound(counts, self.node_fit)
        return self._bounds[key]

    def _packed(self, counts: ClassCounts) -> Packing:
        """Return the best packing, which domains with equal class counts share."""
        key = frozenset(counts.items())
        if key not in self._packings:
            self._packings[key] = best_packing(counts, self.node_fit, self.budget, self._bound(counts))
        return self._packings[key]

    def _spare(self, counts: ClassCounts) -> int:
        """Return the devices that the gang could use there; among equals the domain with fewer comes first."""
        wanted, order = self._gang.wanted, range(len(self._gang.wanted))
        loads = {of: self.node_fit.fill_node(of.node_class, wanted, of.allowed, order) for of in counts}
        return sum(nodes * self.node_fit.devices_of(loads[of]) for of, nodes in counts.items())
