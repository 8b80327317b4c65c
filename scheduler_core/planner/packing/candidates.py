"""Candidate nodes of a gang by class and by topology domain, kept from one plan to the next. Pure.

A leaf is a set of nodes in the same domain of every level. Domains are counted in classes: only nodes that changed are
counted again, and domains with equal counts are one group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain

from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.planner.packing.groups import MemberGroups
from scheduler_core.planner.packing.model import Levels, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import FitClass
from scheduler_core.planner.packing.packings import CountsKey, OrderedCounts, PlacementClass
from scheduler_core.planner.packing.topology_domains import (
    DomainPath,
    SearchLevel,
    domain_of,
    domain_path_of,
    sort_path_of,
)

_MAX_UNUSED = 1 << 6  # classes without nodes
FILTERS_PER_CLOCK_READ = 4096  # kube-scheduler's filters, one for each member and node, between two reads of the clock


class Leaf:
    """Nodes that are in the same domain of every level."""

    __slots__ = ("labels", "names", "path", "size")

    def __init__(self, path: DomainPath, labels: Mapping[str, str]) -> None:
        self.path = path  # domains, widest first
        self.labels = labels  # of any of its nodes
        self.names: dict[PlacementClass, set[str]] = {}
        self.size = 0  # nodes


class Domain:
    """A domain of one search level."""

    __slots__ = ("_ordered", "counts", "key", "leaves")

    def __init__(self) -> None:
        self.leaves: dict[Leaf, None] = {}
        self.counts: dict[PlacementClass, int] = {}
        self.key: CountsKey | None = None  # of its group; None: not in a group yet
        self._ordered: OrderedCounts | None = None

    def mark_changed(self) -> None:
        """Drop what was computed from the nodes."""
        self._ordered = None

    def ordered_counts(self) -> OrderedCounts:
        """Return the number of nodes by class, in the order of the first node of each class."""
        if self._ordered is None:
            self._ordered = self._order_counts()
        return self._ordered

    def _order_counts(self) -> OrderedCounts:
        first: dict[PlacementClass, tuple[DomainPath, str]] = {}
        for leaf in self.leaves:
            for of, names in leaf.names.items():
                at = leaf.path, min(names)
                if of not in first or at < first[of]:
                    first[of] = at
        return tuple((of, self.counts[of]) for of in sorted(first, key=first.__getitem__))


class LevelDomains:
    """The domains of one search level, and those with equal counts as groups."""

    def __init__(self, path_of: Callable[[Leaf], DomainPath | None], leaves: Iterable[Leaf]) -> None:
        self.domains: dict[DomainPath, Domain] = {}
        self._path_of = path_of
        self._paths: dict[Leaf, DomainPath | None] = {}
        self._groups: dict[CountsKey, set[DomainPath]] = {}
        self._changed: set[DomainPath] = set()
        for leaf in leaves:
            for of, names in leaf.names.items():
                self.count_nodes(leaf, of, len(names))

    def groups(self) -> Mapping[CountsKey, AbstractSet[DomainPath]]:
        """Return the paths of the domains by their counts."""
        changed, self._changed = self._changed, set()
        for path in changed:
            domain = self.domains[path]
            if domain.key is not None:
                same = self._groups[domain.key]
                same.discard(path)
                if not same:
                    del self._groups[domain.key]
            if domain.counts:
                domain.key = frozenset(domain.counts.items())
                self._groups.setdefault(domain.key, set()).add(path)
            else:
                del self.domains[path]
        return self._groups

    def count_nodes(self, leaf: Leaf, of: PlacementClass, number: int) -> None:
        """Count so many more nodes of a class in a leaf. Call it after the leaf has changed."""
        if leaf not in self._paths:
            self._paths[leaf] = self._path_of(leaf)
        path = self._paths[leaf]
        if not leaf.size:
            del self._paths[leaf]
        if path is None:
            return
        domain = self.domains.setdefault(path, Domain())
        counts = domain.counts
        counts[of] = counts.get(of, 0) + number
        if not counts[of]:
            del counts[of]
        if leaf.size:
            domain.leaves[leaf] = None
        else:
            domain.leaves.pop(leaf, None)
        domain.mark_changed()
        self._changed.add(path)


class Candidates:
    """Nodes that kube-scheduler would take for at least one kind of members, whatever their GPUs. For one thread."""

    def __init__(self, gang: MemberGroups, levels: Levels) -> None:
        """``gang``: the candidates of all gangs with equal rules are the same."""
        self._filters = [NodeFilter(each.rules) for each in gang.groups]
        self._levels = levels
        self._own_levels = own_levels(gang, levels)
        self._leaves: dict[tuple[DomainPath, tuple[str | None, ...]], Leaf] = {}
        self._places: dict[str, tuple[Leaf, PlacementClass]] = {}
        self._classes: dict[PlacementClass, PlacementClass] = {}  # one object for equal classes
        self._level_domains: dict[SearchLevel, LevelDomains] = {}
        self._mark: int | None = None  # of the node classes; None: no nodes were examined
        self._left: Collection[str] = ()  # nodes that were not examined, for lack of time
        self._special: AbstractSet[str] = frozenset()  # nodes that differ from others for this gang alone
        self._limited: Mapping[str, FitClass] = {}  # as the last argument of ``update``

    def update(
        self, gang: MemberGroups, nodes: NodeClasses, options: PlanOptions, limited: Mapping[str, FitClass]
    ) -> bool:
        """Go on to the present nodes and to another gang. Return False if there was no time to examine all nodes.

        The next call goes on where this one stopped.

        ``limited``: ``FitResults.limited_nodes``. A node that has changed since the last call with the same mapping has
        changed in ``nodes``, too.
        """
        used = {seat.node for seat in options.placed if seat.node is not None}
        excluded = [each.excluded_nodes for each in gang.groups]
        before, self._special = self._special, options.avoid.union(used, *excluded)
        if limited is not self._limited:
            before = {*before, *self._limited, *limited}
            self._limited = limited
        changed = None if self._mark is None else nodes.changed_since(self._mark)
        if changed is None:  # what is known of the nodes may be out of date, and this call may have no time for all
            self._leaves, self._places, self._classes, self._level_domains = {}, {}, {}, {}
        again = self._special if changed is None else self._special.union(changed, before)
        others: Iterable[str] = nodes.capacity_of if changed is None else self._left
        left = [name for name in others if name not in again]
        self._mark = None

        def examine(name: str) -> None:
            capacity, node = nodes.capacity_of.get(name), nodes.rules.get(name)
            if capacity is None or node is None or name in options.avoid:
                self._move(name, None, None)
                return
            allowed = tuple(
                name not in nodes_of and each.rejection_of(node) is None
                for each, nodes_of in zip(self._filters, excluded, strict=True)
            )
            fit_class = limited.get(name) or FitClass(capacity.node_class)
            of = PlacementClass(fit_class, allowed, name in used) if any(allowed) else None
            self._move(name, node, of)

        for name in again:
            examine(name)
        every = max(1, FILTERS_PER_CLOCK_READ // max(1, len(self._filters)))
        while left and not (len(left) % every == 0 and options.out_of_time()):
            examine(left.pop())
        self._mark, self._left = nodes.mark, left
        if len(self._classes) > 2 * len(self._places) + _MAX_UNUSED:
            self._classes = {of: of for _, of in self._places.values()}
        return not left

    def at_level(self, level: SearchLevel) -> LevelDomains:
        """Return the domains of a search level."""
        found = self._level_domains.get(level)
        if found is None:
            found = self._level_domains[level] = LevelDomains(
                lambda leaf: domain_path_of(leaf.labels, level, self._levels), self._leaves.values()
            )
        return found

    def count_groups(self) -> int:
        """Return the number of different counts at all levels."""
        return sum(len(each.groups()) for each in self._level_domains.values())

    def present_counts(self) -> Iterator[CountsKey]:
        """Yield the different counts at all levels."""
        return chain.from_iterable(each.groups() for each in self._level_domains.values())

    def class_of(self, name: str) -> PlacementClass | None:
        """Return the class of a node; None: it is no candidate."""
        place = self._places.get(name)
        return None if place is None else place[1]

    def _move(self, name: str, node: FullNode | None, of: PlacementClass | None) -> None:
        """Put a node into a class and into the leaf of its labels; without a class it is no candidate."""
        before = self._places.get(name)
        labels = {} if node is None else node.metadata.labels or {}
        key = sort_path_of(labels, self._levels), self._values(labels)
        if before is not None:
            if of == before[1] and self._leaves.get(key) is before[0]:
                return
            self._remove(name, *before)
        if of is None:
            return
        of = self._classes.setdefault(of, of)
        leaf = self._leaves.setdefault(key, Leaf(key[0], labels))
        leaf.names.setdefault(of, set()).add(name)
        leaf.size += 1
        self._places[name] = leaf, of
        for each in self._level_domains.values():
            each.count_nodes(leaf, of, 1)

    def _remove(self, name: str, leaf: Leaf, of: PlacementClass) -> None:
        del self._places[name]
        names = leaf.names[of]
        names.discard(name)
        leaf.size -= 1
        if not names:
            del leaf.names[of]
        if not leaf.size:
            del self._leaves[leaf.path, self._values(leaf.labels)]
        for each in self._level_domains.values():
            each.count_nodes(leaf, of, -1)

    def _values(self, labels: Mapping[str, str]) -> tuple[str | None, ...]:
        return tuple(domain_of(labels, each, self._levels) for each in self._own_levels)


def own_levels(gang: MemberGroups, levels: Levels) -> tuple[str, ...]:
    """Return the label keys that the gang uses as levels beside the levels of all gangs."""
    return tuple(each for each in (gang.required, gang.preferred) if each is not None and each not in levels)
