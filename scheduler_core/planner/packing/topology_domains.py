"""Topology domains of nodes, by label: clique, rack, block, zone, or any label key. Pure.

A node without the label is in no domain of that level. Racks with the same name in two blocks or zones are two racks,
as in Kueue; the name of a multi-node NVLink clique is unique in the cluster, and a clique may span racks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gputopo.labels.domains import first_domain
from scheduler_core.planner.packing.model import Levels

SearchLevel = tuple[str, ...]  # levels of which all members must be in one domain; (): anywhere
DomainPath = tuple[str, ...]  # a domain of each level
_UNIQUE = "clique"  # its domains have unique names


def domain_of(labels: Mapping[str, str], level: str, levels: Levels) -> str | None:
    """Return the node's domain of a level; a level that is not named in ``levels`` is a label's key."""
    return first_domain(labels, levels.get(level, (level,)))


def domain_path_of(labels: Mapping[str, str], search_level: SearchLevel, levels: Levels) -> DomainPath | None:
    """Return the node's domains of these levels with their enclosing domains; None: a level has no domain."""
    path: list[str] = []
    for level in search_level:
        domain = domain_of(labels, level, levels)
        if domain is None:
            return None
        path += (domain, *(domain_of(labels, wider, levels) or "" for wider in _enclosing(level, levels)))
    return tuple(path)


def sort_path_of(labels: Mapping[str, str], levels: Levels) -> DomainPath:
    """Return the node's domains, widest first, "" for none: a sort key by which near nodes are adjacent."""
    return tuple(domain_of(labels, level, levels) or "" for level in reversed(list(levels)))


def search_levels(required: str | None, preferred: str | None, levels: Levels) -> tuple[SearchLevel, ...]:
    """Return the levels to try, in order: preferred and narrow ones first, never wider than required."""
    named = list(levels)
    implied = named[named.index(required) :] if required is not None and required in levels else [required]
    domain: dict[frozenset[str], SearchLevel] = {}
    for search_level in _preferred_first(preferred, levels):
        narrower = tuple(level for level in search_level if level not in implied)
        whole = narrower if required is None else (*narrower, required)
        domain.setdefault(frozenset(whole), whole)
    return tuple(domain.values())


def shared_domain(labels: Sequence[Mapping[str, str]], order: Sequence[str], levels: Levels) -> str | None:
    """Return the first of these levels at which all nodes are in one domain: "clique=7b96.1"."""
    for level in order:
        paths = {domain_path_of(each, (level,), levels) for each in labels}
        if len(paths) == 1 and (path := paths.pop()) is not None:
            return f"{level}={path[0]}"
    return None


def _preferred_first(preferred: str | None, levels: Levels) -> Iterator[SearchLevel]:
    if preferred is not None:
        for level in levels:
            if level == preferred:
                break
            yield (level, preferred)
        yield (preferred,)
    for level in levels:
        yield (level,)
    yield ()


def _enclosing(level: str, levels: Levels) -> tuple[str, ...]:
    """Return the levels that enclose a level."""
    named = list(levels)
    return tuple(named[named.index(level) + 1 :]) if level in levels and level != _UNIQUE else ()
