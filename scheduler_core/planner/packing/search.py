"""Search of a gang's domain: level by level, the narrowest first. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import NamedTuple

from scheduler_core.cache.node_state import product_of
from scheduler_core.planner.packing.candidates import Candidates, Domain
from scheduler_core.planner.packing.groups import MemberGroups
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import FitClass, Load, NodeFit
from scheduler_core.planner.packing.pack import PackingBound, PackingRun, best_packing, packing_bound
from scheduler_core.planner.packing.packings import Budget, CountsKey, OrderedCounts, Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath, SearchLevel, domain_path_of, search_levels
from scheduler_core.request.pod_request import Strength

_MAX_UNUSED = 1 << 6  # results that are kept, whether or not they are still used
_MAX_SHARE = 8  # of results to present counts: domains are also counted by product
_MAX_LOADS = 1 << 13


class SearchResult(NamedTuple):
    """The best packing found."""

    packing: Packing = Packing()
    domain: Domain | None = None  # nodes that the packing may use
    exact: bool = True  # no better packing exists

    def is_better(self, other: SearchResult) -> bool:
        """Return whether more members are placed."""
        return self.packing.members > other.packing.members


class LimitedNodes:
    """The nodes whose CPU, memory or pod slots do not suffice for as many members as their GPUs. For one thread."""

    def __init__(self, node_fit: NodeFit) -> None:
        """``node_fit``: of this object alone."""
        self._node_fit = node_fit
        self._found: dict[str, FitClass] = {}
        self._mark: int | None = None  # of the node classes that ``_found`` was computed from

    def present(self) -> Mapping[str, FitClass]:
        """Return the nodes by name: always the same mapping, with its present content."""
        nodes = self._node_fit.nodes
        changed = None if self._mark is None else nodes.changed_since(self._mark)
        if changed is None:
            self._found.clear()
        for name in nodes.capacity_of if changed is None else changed:
            capacity = nodes.capacity_of.get(name)
            of = None if capacity is None else self._node_fit.class_of(capacity)
            if of is not None and of.free is not None:
                self._found[name] = of
            else:
                self._found.pop(name, None)
        self._mark = nodes.mark
        return self._found


def limited_nodes_of(gang: MemberGroups, nodes: NodeClasses) -> LimitedNodes:
    """Return the object of a gang. Gangs with equal ``resource_requests`` can share it."""
    return LimitedNodes(NodeFit(nodes, [group.kind for group in gang.groups], gang.wanted))


def resource_requests(gang: MemberGroups) -> Hashable:
    """Return all that decides which nodes are limited for a gang."""
    return gang.wanted, tuple((each.kind.profile.device_request.totals, each.kind.load) for each in gang.groups)


class FitResults:
    """Results for equal gangs by class and by class counts, which no change of nodes makes wrong. For one thread."""

    def __init__(self, gang: MemberGroups, nodes: NodeClasses, limited: LimitedNodes | None = None) -> None:
        """``limited``: shared with other gangs."""
        self.node_fit = NodeFit(nodes, [group.kind for group in gang.groups], gang.wanted, gang.conflicting_kinds)
        self.loads: dict[int, Load] = {}  # by class: members of each kind that fit alone; classes without any left out
        self._bounds: dict[CountsKey, PackingBound] = {}
        self._packings: dict[OrderedCounts, PackingRun] = {}
        self._spare: dict[CountsKey, int] = {}
        self.limited_nodes = (limited or limited_nodes_of(gang, nodes)).present

    def bound_of(self, counts: CountsKey) -> PackingBound:
        """Return a bound of all packings on so many nodes."""
        found = self._bounds.get(counts)
        if found is None:
            found = self._bounds[counts] = packing_bound(dict(counts), self.node_fit)
        return found

    def packing_on(self, counts: OrderedCounts, bound: PackingBound, budget: Budget) -> Packing:
        """Return the best packing on so many nodes, within the budget."""
        run = self._packings.get(counts)
        if run is not None and run.is_repeated_by(budget):
            budget.taken += run.greedy_steps + run.exact_steps
        else:
            run = self._packings[counts] = best_packing(dict(counts), self.node_fit, budget, bound)
        return run.packing

    def spare_on(self, counts: CountsKey) -> int:
        """Return the devices that the gang could use on so many nodes."""
        if counts not in self._spare:
            wanted, order = self.node_fit.wanted, range(len(self.node_fit.wanted))
            self._spare[counts] = sum(
                nodes * self.node_fit.devices_of(self.node_fit.fill_node(of.node_class, wanted, of.allowed, order))
                for of, nodes in counts
            )
        return self._spare[counts]

    def drop_unused(self, classes: Collection[int], candidates: Candidates) -> None:
        """Drop results of former classes and counts where they are more than those of the present ones."""
        number = candidates.count_groups()
        if max(len(self._bounds), len(self._spare), len(self._packings)) > _MAX_SHARE * number + _MAX_UNUSED:
            counts = set(candidates.present_counts())
            self._bounds = {each: self._bounds[each] for each in counts if each in self._bounds}
            self._spare = {each: self._spare[each] for each in counts if each in self._spare}
            self._packings = {each: run for each, run in self._packings.items() if frozenset(each) in counts}
        if len(self.loads) > min(_MAX_LOADS, 2 * len(classes) + _MAX_UNUSED):
            for each in [each for each in self.loads if each not in classes]:
                del self.loads[each]
        self.node_fit.drop_unused()


class SearchMemory(NamedTuple):
    """Data of a search that later searches reuse."""

    candidates: Candidates  # of gangs with equal rules
    results: FitResults  # of equal gangs


class Search:
    """Search for one gang on one snapshot."""

    def __init__(
        self, gang: MemberGroups, view: NodeView, options: PlanOptions, nodes: NodeClasses, memory: SearchMemory | None
    ) -> None:
        """``nodes``: of this view. ``memory``: of an equal gang."""
        self._gang, self._view, self._options = gang, view, options
        self._nodes = nodes
        memory = memory or SearchMemory(Candidates(gang, options.levels), FitResults(gang, nodes))
        self.candidates, self._results = memory
        self.node_filters = [NodeFilter(group.rules, group.excluded_nodes) for group in gang.groups]
        self.node_fit = self._results.node_fit
        self.candidates.update(gang, nodes, options, self._results.limited_nodes())
        self.budget = Budget(options.steps, options.out_of_time)
        self._siblings = [seat.node for seat in options.placed if seat.node in view.rules]
        self._packings: dict[CountsKey, Packing] = {}

    def best_result(self) -> SearchResult:
        """Return the best result on GPUs of one product if it places as many members as any other, else the best."""
        all_members = sum(self._gang.wanted)
        if not self._has_several_products():
            return self._best_of_levels()
        uniform = self._best_of_levels(one_product=True)
        if self._gang.same_product is Strength.REQUIRED or uniform.packing.members == all_members:
            return uniform
        found = self._best_of_levels()
        return found if found.is_better(uniform) else uniform

    def _has_several_products(self) -> bool:
        """Return whether it matters that all members get GPUs of one product. In most clusters all are equal."""
        if self._gang.same_product is Strength.REQUIRED:
            return True
        if self._gang.same_product is Strength.IGNORE:
            return False
        anywhere = frozenset[tuple[PlacementClass, int]]().union(*self.candidates.at_level(()).groups())
        uniform = counts_by_product(anywhere, self._nodes)
        return bool(uniform) and anywhere not in uniform.values()

    def _best_of_levels(self, *, one_product: bool = False) -> SearchResult:
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
            found = self._best_at(level, self._needed_members(best, last=last), one_product=one_product)
            exact = exact and found.exact
            best = found if found.is_better(best) else best
        return best._replace(exact=exact)

    def _needed_members(self, best: SearchResult, *, last: bool) -> int:
        """Return the members that a result must place to matter. At the widest level one is enough: people see it."""
        needed = self._gang.minimum - len(self._gang.without_gpus)
        return max(best.packing.members + 1, 1 if last else needed)

    def _best_at(self, level: SearchLevel, at_least: int, *, one_product: bool) -> SearchResult:
        """Return the best result among the domains of a level. Domains with the best bound are tried first."""
        best: tuple[tuple[object, ...], SearchResult] | None = None
        exact = True
        for bound, path, counts in self._bounded(level, at_least, one_product=one_product):
            if best is not None and bound > best[0][: len(bound)]:
                break
            if best is not None and self.budget.is_exhausted:
                exact = False
                break
            domain = self.candidates.at_level(level).domains[path]
            packing = self._packed(counts, domain)
            exact = exact and packing.exact
            if packing.members >= at_least:
                members, nodes, points = packing.rank
                # Among equals the domain with fewer devices that the gang could use.
                rank = (members, bound[1], nodes, points, self._results.spare_on(counts), path)
                if best is None or rank < best[0]:
                    best = rank, SearchResult(packing, domain)
        return (SearchResult() if best is None else best[1])._replace(exact=exact)

    def _bounded(
        self, level: SearchLevel, at_least: int, *, one_product: bool
    ) -> Iterator[tuple[tuple[float, ...], DomainPath, CountsKey]]:
        """Yield the domains that may take so many members by their bound, then by their path.

        Of domains with equal counts and as many placed siblings, only the first: it is the best of them.
        """
        groups = self.candidates.at_level(level).groups()
        self._results.drop_unused(self._nodes.classes, self.candidates)
        siblings_in = self._siblings_by_domain(level)
        by_bound: defaultdict[tuple[float, ...], list[tuple[DomainPath, str, CountsKey]]] = defaultdict(list)
        parts = (
            (product, counts, paths)
            for whole, paths in groups.items()
            for product, counts in (self._parts(whole) if one_product else (("", whole),))
        )
        for product, counts, paths in parts:
            members, nodes, points = self._results.bound_of(counts)
            if -members < at_least:
                continue
            if not self._siblings:
                by_bound[members, 0, nodes, points].append((min(paths), product, counts))
            elif self._is_reachable():
                for path in paths & siblings_in.keys():
                    by_bound[members, -siblings_in[path], nodes, points].append((path, product, counts))
        for bound, same in sorted(by_bound.items(), key=lambda each: each[0]):
            for path, _, counts in sorted(same, key=lambda each: each[:2]):
                yield bound, path, counts

    def _parts(self, counts: CountsKey) -> Iterator[tuple[str, CountsKey]]:
        """Yield the nodes of each product; of the product of the placed siblings only, where there are some."""
        states = self._view.table.states
        placed = {product_of(states[node]) for node in self._siblings if node is not None and node in states}
        for product, part in counts_by_product(counts, self._nodes).items():
            if not placed or placed == {product}:
                yield product, part

    def _is_reachable(self) -> bool:
        """Return whether more members can be placed: with a required level, all siblings are in one domain of it."""
        required = self._gang.required
        if required is None:
            return True
        siblings_in = self._siblings_by_domain((required,))
        return len(siblings_in) == 1 and siblings_in.total() == len(self._siblings)

    def _siblings_by_domain(self, level: SearchLevel) -> Counter[DomainPath]:
        """Count placed siblings by domain."""
        rules, levels = self._view.rules, self._options.levels
        found = (domain_path_of(rules[node].metadata.labels or {}, level, levels) for node in self._siblings if node)
        return Counter(path for path in found if path is not None)

    def _packed(self, counts: CountsKey, domain: Domain) -> Packing:
        """Return the best packing, which domains with equal class counts share."""
        if counts not in self._packings:
            bound = self._results.bound_of(counts)
            number_of = dict(counts)
            ordered = tuple((of, number_of[of]) for of, _ in domain.ordered_counts() if of in number_of)
            self._packings[counts] = self._results.packing_on(ordered, bound, self.budget)
        return self._packings[counts]


def counts_by_product(counts: CountsKey, nodes: NodeClasses) -> dict[str, CountsKey]:
    """Return the counts of the nodes of each product, without nodes of several products or of an unknown one."""
    found: defaultdict[str, set[tuple[PlacementClass, int]]] = defaultdict(set)
    for of, number in counts:
        if (product := product_of(nodes.classes[of.node_class.number].state)) is not None:
            found[product].add((of, number))
    return {product: frozenset(part) for product, part in found.items()}
