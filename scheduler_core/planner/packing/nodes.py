"""The nodes that a gang may go to, by class and by where they are. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler_core.planner.packing.model import Levels, NodeView, PlanOptions
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import Load, NodeFit
from scheduler_core.planner.packing.stock import Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath, SearchLevel, domain_path_of, sort_path_of


class GangNode(NamedTuple):
    """A node."""

    name: str
    of: PlacementClass
    path: DomainPath  # its domains, widest first


class UsedNode(NamedTuple):
    """A node and what comes onto it."""

    site: GangNode
    load: Load
    points: int


def gang_nodes(view: NodeView, options: PlanOptions, fitting: NodeFit, bars: Sequence[NodeFilter]) -> list[GangNode]:
    """All nodes that at least one kind may go to, whatever their GPUs. Near ones stand together."""
    used = {seat.node for seat in options.placed}
    known: dict[object, PlacementClass] = {}
    sites = []
    for name in view.table.states:
        node = view.rules.get(name)
        if node is None or name in options.avoid:
            continue
        allowed = tuple(each.rejection_of(node) is None for each in bars)
        if any(allowed):
            of = PlacementClass(fitting.class_number(name), allowed, name in used)
            path = sort_path_of(node.metadata.labels or {}, options.levels)
            sites.append(GangNode(name, known.setdefault(of, of), path))
    return sorted(sites, key=lambda site: (site.path, site.name))


def group_by_domain(
    sites: Iterable[GangNode], rung: SearchLevel, view: NodeView, levels: Levels
) -> Mapping[DomainPath, Sequence[GangNode]]:
    """By the domains that they are in, of those levels."""
    groups: defaultdict[DomainPath, list[GangNode]] = defaultdict(list)
    for site in sites:
        place = domain_path_of(view.rules[site.name].metadata.labels or {}, rung, levels)
        if place is not None:
            groups[place].append(site)
    return groups


def class_counts(sites: Iterable[GangNode]) -> dict[PlacementClass, int]:
    """How many nodes there are of each class, in the order of the first of each."""
    return dict(Counter(site.of for site in sites))


def choose_nodes(packing: Packing, sites: Sequence[GangNode]) -> list[UsedNode]:
    """Which nodes of each class: as near each other as can be found, domain by domain, the widest first."""
    picks: defaultdict[PlacementClass, list[tuple[Load, int]]] = defaultdict(list)
    for pick in sorted(packing.picks, key=lambda each: (each.load, each.points), reverse=True):
        picks[pick.of].append((pick.load, pick.points))
    needed = Counter({of: len(loads) for of, loads in picks.items()})
    near = sorted(_nearest(needed, sites, 0), key=lambda site: (site.path, site.name))
    return [UsedNode(site, *picks[site.of].pop(0)) for site in near]


def _nearest(needed: Counter[PlacementClass], sites: Sequence[GangNode], depth: int) -> list[GangNode]:
    """That many nodes of each class, from as few domains as a greedy choice needs."""
    if not sites or depth == len(sites[0].path):
        return _first(needed, sites)
    domains: defaultdict[str, list[GangNode]] = defaultdict(list)
    for site in sites:
        domains[site.path[depth]].append(site)
    stocks = {domain: Counter(site.of for site in those) for domain, those in domains.items()}
    used = {domain: sum(site.of.used for site in those) for domain, those in domains.items()}
    left, found = Counter(needed), list[GangNode]()
    while left:
        # Of domains that have as much of what is needed the smallest, so that big ones stay whole.
        best = max(stocks, key=lambda domain: (used[domain], (left & stocks[domain]).total(), -len(domains[domain])))
        share = left & stocks.pop(best)
        found += _nearest(share, domains[best], depth + 1)
        left -= share
    return found


def _first(needed: Counter[PlacementClass], sites: Iterable[GangNode]) -> list[GangNode]:
    left, found = Counter(needed), []
    for site in sites:
        if left[site.of] > 0:
            left[site.of] -= 1
            found.append(site)
    return found
