"""Which nodes are near each other, by their labels: in one clique, rack, block, zone, or whatever a label says. Pure.

A node without the label is in no domain of that level. Racks of one name in two blocks or zones are two racks, as in
Kueue; a multi-node NVLink clique has a name of its own everywhere, and may be of several racks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scheduler_core.planner.packing.model import Levels

SearchLevel = tuple[str, ...]  # levels at all of which all members are to be in one domain; none: anywhere
DomainPath = tuple[str, ...]  # a domain of each of them
_BY_ITSELF = "clique"


def domain_of(labels: Mapping[str, str], level: str, levels: Levels) -> str | None:
    """The node's domain of a level; a level that has no name is a label's key."""
    return next((labels[key] for key in levels.get(level, (level,)) if labels.get(key)), None)


def domain_path_of(labels: Mapping[str, str], rung: SearchLevel, levels: Levels) -> DomainPath | None:
    """The node's domains of those levels, with those that they are in; None where it is in none of one of them."""
    place: list[str] = []
    for level in rung:
        found = domain_of(labels, level, levels)
        if found is None:
            return None
        place += (found, *(domain_of(labels, wider, levels) or "" for wider in _around(level, levels)))
    return tuple(place)


def sort_path_of(labels: Mapping[str, str], levels: Levels) -> DomainPath:
    """Its domains, widest first, "" for none: what sorts near nodes together."""
    return tuple(domain_of(labels, level, levels) or "" for level in reversed(list(levels)))


def search_levels(required: str | None, preferred: str | None, levels: Levels) -> tuple[SearchLevel, ...]:
    """What to try, in that order: the narrowest that is what is preferred first, never wider than what is required."""
    named = list(levels)
    implied = named[named.index(required) :] if required is not None and required in levels else [required]
    found: dict[frozenset[str], SearchLevel] = {}
    for rung in _wished(preferred, levels):
        narrower = tuple(level for level in rung if level not in implied)
        whole = narrower if required is None else (*narrower, required)
        found.setdefault(frozenset(whole), whole)
    return tuple(found.values())


def shared_domain(labels: Sequence[Mapping[str, str]], order: Sequence[str], levels: Levels) -> str | None:
    """The first of those levels at which all are in one domain: "clique=7b96.1"."""
    for level in order:
        places = {domain_path_of(each, (level,), levels) for each in labels}
        if len(places) == 1 and (place := places.pop()) is not None:
            return f"{level}={place[0]}"
    return None


def _wished(preferred: str | None, levels: Levels) -> Iterator[SearchLevel]:
    if preferred is not None:
        for level in levels:
            if level == preferred:
                break
            yield (level, preferred)
        yield (preferred,)
    for level in levels:
        yield (level,)
    yield ()


def _around(level: str, levels: Levels) -> tuple[str, ...]:
    """The levels that this one's domains lie in."""
    named = list(levels)
    return tuple(named[named.index(level) + 1 :]) if level in levels and level != _BY_ITSELF else ()
