"""Candidate nodes of a gang, by class and by topology domain. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler_core.planner.packing.model import Levels, NodeView, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import Load
from scheduler_core.planner.packing.stock import Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath, SearchLevel, domain_path_of, sort_path_of

FILTERS_PER_CLOCK_READ = 4096  # kube-scheduler's filters, one for each member and node, between two reads of the clock


class GangNode(NamedTuple):
    """A node that at least one member may use."""

    name: str
    of: PlacementClass
    path: DomainPath  # domains, widest first


class UsedNode(NamedTuple):
    """A node and the members that a plan puts on it."""

    node: GangNode
    load: Load
    points: int


def gang_nodes(
    view: NodeView, options: PlanOptions, nodes: NodeClasses, filters: Sequence[NodeFilter]
) -> list[GangNode]:
    """Return nodes that kube-scheduler would take for at least one kind, whatever their GPUs, sorted by domain.

    Nodes that are not examined in time are left out.
    """
    used = {seat.node for seat in options.placed}
    known: dict[object, PlacementClass] = {}
    candidates = []
    every = max(1, FILTERS_PER_CLOCK_READ // max(1, len(filters)))
    for at, (name, number) in enumerate(nodes.number_of.items(), 1):
        if at % every == 0 and options.out_of_time():
            break
        node = view.rules.get(name)
        if node is None or name in options.avoid:
            continue
        allowed = tuple(each.rejection_of(node) is None for each in filters)
        if any(allowed):
            of = PlacementClass(number, allowed, name in used)
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
