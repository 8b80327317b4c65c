"""Planning without memory and without groups: every node is a candidate of its own, in every plan. For comparison."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduler_core.cache.node_state import product_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import GangPlan, Levels, NodeView, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.nodes import GangNode, UsedNode
from scheduler_core.planner.packing.pack import PackingBound, best_packing, packing_bound
from scheduler_core.planner.packing.packings import Budget, ClassCounts, Packing, PlacementClass
from scheduler_core.planner.packing.plan import plan_on_nodes
from scheduler_core.planner.packing.topology_domains import (
    DomainPath,
    SearchLevel,
    domain_path_of,
    search_levels,
    sort_path_of,
)
from scheduler_core.request.pod_request import Strength


def plan_plainly(members: Sequence[Member], view: NodeView, options: PlanOptions) -> GangPlan | None:
    """Return the plan of a gang; None: it does not fit."""
    gang = group_members(members, view, options)
    assert isinstance(gang, MemberGroups)  # the requests are valid
    search = PlainSearch(gang, view, options, NodeClasses(view))
    found = search.best_result()
    placed = found.packing.members + len(gang.without_gpus)
    if placed < gang.minimum:
        return None
    used = choose_nodes(found.packing, found.candidates)
    return plan_on_nodes(gang, used, view, options)._replace(steps=search.budget.taken, exact=found.exact)


def gang_nodes(
    view: NodeView, options: PlanOptions, node_fit: NodeFit, filters: Sequence[NodeFilter]
) -> list[GangNode]:
    """Return nodes that kube-scheduler would take for at least one kind, whatever their GPUs, sorted by domain."""
    used = {seat.node for seat in options.placed}
    known: dict[object, PlacementClass] = {}
    candidates = []
    for name, capacity in node_fit.nodes.capacity_of.items():
        node = view.rules.get(name)
        if node is None or name in options.avoid:
            continue
        allowed = tuple(each.rejection_of(node) is None for each in filters)
        if any(allowed):
            of = PlacementClass(node_fit.class_of(capacity), allowed, name in used)
            path = sort_path_of(node.metadata.labels or {}, options.levels)
            candidates.append(GangNode(name, known.setdefault(of, of), path))
    return sorted(candidates, key=lambda candidate: (candidate.path, candidate.name))


def group_by_domain(
    candidates: Iterable[GangNode], level: SearchLevel, view: NodeView, levels: Levels
) -> Mapping[DomainPath, Sequence[GangNode]]:
    """Group nodes by their domains of these levels."""
    groups: defaultdict[DomainPath, list[GangNode]] = defaultdict(list)
    for candidate in candidates:
        domain = domain_path_of(view.rules[candidate.name].metadata.labels or {}, level, levels)
        if domain is not None:
            groups[domain].append(candidate)
    return groups


def class_counts(candidates: Iterable[GangNode]) -> dict[PlacementClass, int]:
    """Return the number of nodes of each class, in the order of first occurrence."""
    return dict(Counter(candidate.of for candidate in candidates))


def choose_nodes(packing: Packing, candidates: Sequence[GangNode]) -> list[UsedNode]:
    """Choose nodes of each class for a packing, near each other: domain by domain, the widest level first."""
    picks: defaultdict[PlacementClass, list[tuple[Load, int]]] = defaultdict(list)
    for pick in sorted(packing.picks, key=lambda each: (each.load, each.points), reverse=True):
        picks[pick.of].append((pick.load, pick.points))
    needed = Counter({of: len(loads) for of, loads in picks.items()})
    chosen = sorted(_nearest(needed, candidates, 0), key=lambda candidate: (candidate.path, candidate.name))
    return [UsedNode(candidate, *picks[candidate.of].pop(0)) for candidate in chosen]


def _nearest(needed: Counter[PlacementClass], candidates: Sequence[GangNode], depth: int) -> list[GangNode]:
    """Return the needed nodes of each class, from as few domains as a greedy choice needs."""
    if not candidates or depth == len(candidates[0].path):
        return _first(needed, candidates)
    domains: defaultdict[str, list[GangNode]] = defaultdict(list)
    for candidate in candidates:
        domains[candidate.path[depth]].append(candidate)
    counts = {domain: Counter(candidate.of for candidate in inside) for domain, inside in domains.items()}
    used = {domain: sum(candidate.of.has_siblings for candidate in inside) for domain, inside in domains.items()}
    left, found = Counter(needed), list[GangNode]()
    while left:
        # Among domains with as many needed nodes, the smallest: large domains stay unused.
        best = max(counts, key=lambda domain: (used[domain], (left & counts[domain]).total(), -len(domains[domain])))
        chosen = left & counts.pop(best)
        found += _nearest(chosen, domains[best], depth + 1)
        left -= chosen
    return found


def _first(needed: Counter[PlacementClass], candidates: Iterable[GangNode]) -> list[GangNode]:
    left, found = Counter(needed), []
    for candidate in candidates:
        if left[candidate.of] > 0:
            left[candidate.of] -= 1
            found.append(candidate)
    return found


class PlainResult(NamedTuple):
    """The best packing found."""

    packing: Packing = Packing()
    candidates: Sequence[GangNode] = ()  # nodes that the packing may use
    exact: bool = True  # no better packing exists

    def is_better(self, other: PlainResult) -> bool:
        """Return whether more members are placed."""
        return self.packing.members > other.packing.members


class _Domain(NamedTuple):
    path: DomainPath
    candidates: Sequence[GangNode]
    counts: ClassCounts
    product: str = ""


class PlainSearch:
    """Search for one gang on one snapshot."""

    def __init__(self, gang: MemberGroups, view: NodeView, options: PlanOptions, nodes: NodeClasses) -> None:
        """``nodes``: of this view."""
        self._gang, self._view, self._options = gang, view, options
        self.node_filters = [NodeFilter(group.rules, group.excluded_nodes) for group in gang.groups]
        self.node_fit = NodeFit(nodes, [group.kind for group in gang.groups], gang.wanted, gang.conflicting_kinds)
        self.candidates = gang_nodes(view, options, self.node_fit, self.node_filters)
        self.budget = Budget(options.steps, options.out_of_time)
        self._siblings = [seat.node for seat in options.placed if seat.node in view.rules]
        self._packings: dict[frozenset[tuple[PlacementClass, int]], Packing] = {}
        self._bounds: dict[frozenset[tuple[PlacementClass, int]], PackingBound] = {}

    def best_result(self) -> PlainResult:
        """Return the best result on GPUs of one product if it places as many members as any other, else the best."""
        wish, products = self._gang.same_product, {self._product(each.of) for each in self.candidates}
        if wish is Strength.IGNORE or (wish is Strength.PREFERRED and (len(products) < 2 or products == {None})):
            return self._best_of_levels()
        uniform = self._best_of_levels(one_product=True)
        if wish is Strength.REQUIRED or uniform.packing.members == sum(self._gang.wanted):
            return uniform
        found = self._best_of_levels()
        return found if found.is_better(uniform) else uniform

    def _product(self, of: PlacementClass) -> str | None:
        return product_of(self.node_fit.nodes.classes[of.node_class.number].state)

    def _best_of_levels(self, *, one_product: bool = False) -> PlainResult:
        """Return the result of the first level that places all members; else the result that places most."""
        all_members = sum(self._gang.wanted)
        best, exact = PlainResult(), True
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

    def _needed_members(self, best: PlainResult, *, last: bool) -> int:
        """Return the members that a result must place to matter. At the widest level one is enough: people see it."""
        needed = self._gang.minimum - len(self._gang.without_gpus)
        return max(best.packing.members + 1, 1 if last else needed)

    def _best_at(self, level: SearchLevel, at_least: int, *, one_product: bool) -> PlainResult:
        """Return the best result among the domains of a level. Domains with the best bound are tried first."""
        best: tuple[tuple[object, ...], PlainResult] | None = None
        exact = True
        domains = self._domains(level, at_least, one_product=one_product)
        for bound, domain in sorted(domains, key=lambda each: (each[0], each[1].path, each[1].product)):
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
                    best = rank, PlainResult(packing, domain.candidates)
        return (PlainResult() if best is None else best[1])._replace(exact=exact)

    def _domains(
        self, level: SearchLevel, at_least: int, *, one_product: bool
    ) -> Iterator[tuple[tuple[float, ...], _Domain]]:
        """Yield the domains that may take so many members, with the bound of each."""
        siblings_in = self._siblings_by_domain(level)
        for path, candidates in group_by_domain(self._reachable(), level, self._view, self._options.levels).items():
            if self._siblings and path not in siblings_in:
                continue
            for product in self._products(candidates) if one_product else [""]:
                counts = class_counts(
                    each for each in candidates if not one_product or self._product(each.of) == product
                )
                members, nodes, points = self._bound(counts)
                if -members >= at_least:
                    yield (members, -siblings_in[path], nodes, points), _Domain(path, candidates, counts, product)

    def _products(self, candidates: Iterable[GangNode]) -> set[str]:
        """Return the products to try: of the placed siblings, where there are some."""
        states = self._view.table.states
        placed = {product_of(states[node]) for node in self._siblings if node is not None and node in states}
        found = {self._product(each.of) for each in candidates}
        return {each for each in found if each is not None and (not placed or placed == {each})}

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
            self._packings[key] = best_packing(counts, self.node_fit, self.budget, self._bound(counts)).packing
        return self._packings[key]

    def _spare(self, counts: ClassCounts) -> int:
        """Return the devices that the gang could use there; among equals the domain with fewer comes first."""
        wanted, order = self._gang.wanted, range(len(self._gang.wanted))
        loads = {of: self.node_fit.fill_node(of.node_class, wanted, of.allowed, order) for of in counts}
        return sum(nodes * self.node_fit.devices_of(loads[of]) for of, nodes in counts.items())
