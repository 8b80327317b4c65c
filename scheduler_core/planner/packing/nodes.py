"""Choose the nodes for a packing, near each other. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

from scheduler_core.planner.packing.candidates import Leaf
from scheduler_core.planner.packing.node_fit import Load
from scheduler_core.planner.packing.packings import Packing, PlacementClass
from scheduler_core.planner.packing.topology_domains import DomainPath


class GangNode(NamedTuple):
    """A node that a plan uses."""

    name: str
    of: PlacementClass
    path: DomainPath  # domains, widest first


class UsedNode(NamedTuple):
    """A node and the members that a plan puts on it."""

    node: GangNode
    load: Load
    points: int


def choose_nodes(packing: Packing, leaves: Iterable[Leaf]) -> list[UsedNode]:
    """Choose nodes of each class for a packing, near each other: domain by domain, the widest level first."""
    picks: defaultdict[PlacementClass, list[tuple[Load, int]]] = defaultdict(list)
    for pick in sorted(packing.picks, key=lambda each: (each.load, each.points), reverse=True):
        picks[pick.of].append((pick.load, pick.points))
    needed = Counter({of: len(loads) for of, loads in picks.items()})
    by_path = sorted(leaves, key=lambda leaf: leaf.path)
    chosen = sorted(_nearest(needed, by_path, 0), key=lambda node: (node.path, node.name))
    return [UsedNode(node, *picks[node.of].pop(0)) for node in chosen]


def _nearest(needed: Counter[PlacementClass], leaves: Sequence[Leaf], depth: int) -> list[GangNode]:
    """Return the needed nodes of each class, from as few domains as a greedy choice needs."""
    if not leaves or depth == len(leaves[0].path):
        return _first(needed, leaves)
    domains: defaultdict[str, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        domains[leaf.path[depth]].append(leaf)
    if len(domains) == 1:
        return _nearest(needed, leaves, depth + 1)
    counts = {domain: _count_needed(needed, inside) for domain, inside in domains.items()}
    siblings = {domain: _count_siblings(inside) for domain, inside in domains.items()}
    sizes = {domain: sum(leaf.size for leaf in inside) for domain, inside in domains.items()}
    left, found = Counter(needed), list[GangNode]()
    while left:
        # Among domains with as many needed nodes, the smallest: large domains stay unused.
        best = max(counts, key=lambda domain: (siblings[domain], (left & counts[domain]).total(), -sizes[domain]))
        chosen = left & counts.pop(best)
        found += _nearest(chosen, domains[best], depth + 1)
        left -= chosen
    return found


def _count_needed(needed: Iterable[PlacementClass], leaves: Iterable[Leaf]) -> Counter[PlacementClass]:
    found = Counter[PlacementClass]()
    for leaf in leaves:
        for of in leaf.names.keys() & needed if len(leaf.names) < 8 else needed:
            found[of] += len(leaf.names.get(of, ()))
    return found


def _count_siblings(leaves: Iterable[Leaf]) -> int:
    """Return the number of nodes with placed siblings."""
    return sum(len(names) for leaf in leaves for of, names in leaf.names.items() if of.has_siblings)


def _first(needed: Counter[PlacementClass], leaves: Iterable[Leaf]) -> list[GangNode]:
    """Return the first nodes of each class by name. The leaves have one path."""
    inside = tuple(leaves)
    return [
        GangNode(name, of, inside[0].path)
        for of, number in needed.items()
        for name in nsmallest(number, chain.from_iterable(leaf.names.get(of, ()) for leaf in inside))
    ]
