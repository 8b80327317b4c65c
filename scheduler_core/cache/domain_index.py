"""The nodes of each clique (multi-node NVLink) and rack, kept as nodes come, change and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from scheduler_core.cache.colocation import Domain, Proximity
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord


def domains_of(facts: NodeFacts | None) -> tuple[Domain, ...]:
    """Return the clique and the rack that the labels of a node name."""
    if facts is None:
        return ()
    named = ((Proximity.CLIQUE, facts.clique), (Proximity.RACK, facts.rack))
    return tuple((level, name) for level, name in named if name is not None)


class DomainIndex:
    """The names of the nodes of each domain, sorted. For one thread."""

    def __init__(self, records: Iterable[NodeRecord] = ()) -> None:
        """Create the index of these nodes."""
        self._domains: dict[str, tuple[Domain, ...]] = {}  # of nodes that have any
        self._names: dict[Domain, list[str]] = {}
        for record in records:
            self.set_node(record.name, record.machine)

    def set_node(self, name: str, facts: NodeFacts | None) -> None:
        """Add or change a node; remove it where ``facts`` is None."""
        before, after = self._domains.get(name, ()), domains_of(facts)
        if before == after:
            return
        for domain in before:
            names = self._names[domain]
            del names[bisect_left(names, name)]
            if not names:
                del self._names[domain]
        for domain in after:
            insort(self._names.setdefault(domain, []), name)
        if after:
            self._domains[name] = after
        else:
            del self._domains[name]

    def domains_of_node(self, name: str) -> tuple[Domain, ...]:
        """Return the domains of a node."""
        return self._domains.get(name, ())

    def nodes_in(self, domain: Domain) -> Sequence[str]:
        """Return the names of the nodes of a domain, sorted."""
        return self._names.get(domain, ())
