"""Which member goes to which place, so that neighbours in rank are neighbours in the fabric. Pure.

Places come node by node, near nodes one after the other. Members with ranks of their own keep them, and are put there
in that order; the others get theirs from where they are, node by node.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from operator import and_
from typing import NamedTuple

from scheduler_core.planner.gang.member import Member

_DIGITS = re.compile(r"(\d+)", re.ASCII)
# Of gangs whose members ask for different things; where there are more, members change places.
_FEW = 12
_MAX_ASSIGNMENTS = 1 << 11
_MOST_SWAPS = 1 << 16


class Slot(NamedTuple):
    """A place for one member of a kind."""

    node: str
    kind: int
    domains: tuple[str, ...] = ()  # domains of the node, widest first


class RankedMember(NamedTuple):
    """A member, its place and its rank."""

    member: Member
    slot: Slot
    rank: int


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """How people sort names: worker-2 before worker-10."""
    parts = (part for part in _DIGITS.split(text) if part)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def sort_by_rank(members: Sequence[Member]) -> list[Member]:
    """By their own ranks, where all of these have one; else by name."""
    own = [each.gang_request.rank for each in members if each.gang_request.rank is not None]
    if len(own) == len(set(own)):
        return sorted(
            members, key=lambda each: (each.gang_request.rank is None, each.gang_request.rank or 0, *_named(each))
        )
    return sorted(members, key=_named)


def assign_ranks(
    kinds: Sequence[Sequence[Member]], chairs: Sequence[Slot], taken: Collection[int] = ()
) -> list[RankedMember]:
    """Everybody's place, by rank. ``kinds``: as many members of each kind as there are chairs for it.

    ``taken``: ranks of siblings that have their nodes already.
    """
    members = [each for kind in kinds for each in kind]
    own = [each.gang_request.rank for each in members if each.gang_request.rank is not None]
    if not own or len(own) > len(set(own)) or not set(own).isdisjoint(taken):
        ranks = _free(taken)
        waiting = [iter(sorted(kind, key=_named)) for kind in kinds]
        return [RankedMember(next(waiting[chair.kind]), chair, next(ranks)) for chair in chairs]
    return _kept(kinds, chairs, {*taken, *own})


def count_crossings(found: Sequence[RankedMember]) -> tuple[int, ...]:
    """Neighbours in rank that are in different domains, widest level first, and last on different nodes."""
    return _sum(_apart(one.slot, other.slot) for one, other in pairwise(found))


def _kept(kinds: Sequence[Sequence[Member]], chairs: Sequence[Slot], taken: Collection[int]) -> list[RankedMember]:
    """Those without a rank get what is free; then all are put in order of rank, each on the next chair for its kind."""
    free = _free(taken)
    named = sorted((each for kind in kinds for each in kind if each.gang_request.rank is None), key=_named)
    rank_of = {each.uid: next(free) for each in named}
    waiting: defaultdict[int, Iterator[Slot]] = defaultdict(lambda: iter(()))
    for at in range(len(kinds)):
        waiting[at] = iter([chair for chair in chairs if chair.kind == at])
    everybody = [
        (each.gang_request.rank if each.gang_request.rank is not None else rank_of[each.uid], at, each)
        for at, kind in enumerate(kinds)
        for each in kind
    ]
    everybody.sort(key=lambda each: each[0])
    if len(kinds) > 1 and (seating := _assignment([at for _, at, _ in everybody], chairs)) is not None:
        return [RankedMember(member, chair, rank) for (rank, _, member), chair in zip(everybody, seating, strict=True)]
    found = [RankedMember(member, next(waiting[at]), rank) for rank, at, member in everybody]
    return found if len(kinds) == 1 else _swapped(found)


class _PartialAssignment(NamedTuple):
    """The best way to seat the first members."""

    cost: tuple[int, ...] = ()
    chair: Slot | None = None
    before: _PartialAssignment | None = None


def _assignment(kinds: Sequence[int], chairs: Sequence[Slot]) -> list[Slot] | None:
    """The best chairs for members of those kinds in that order; None where there is too much to try."""
    if len(chairs) > _FEW:
        return None
    different = sorted(set(chairs))
    # By how many are left of each, and which was taken last.
    ways = {(tuple(map(chairs.count, different)), -1): _PartialAssignment()}
    tried = 0
    for kind in kinds:
        following: dict[tuple[tuple[int, ...], int], _PartialAssignment] = {}
        for (left, _), way in ways.items():
            for at, chair in enumerate(different):
                if chair.kind != kind or not left[at]:
                    continue
                cost = () if way.chair is None else _sum((way.cost, _apart(way.chair, chair)))
                key = ((*left[:at], left[at] - 1, *left[at + 1 :]), at)
                known = following.get(key)
                if known is None or cost < known.cost:
                    following[key] = _PartialAssignment(cost, chair, way)
        tried += len(following)
        if tried > _MAX_ASSIGNMENTS:
            return None
        ways = following
    return list(_chairs(min(ways.values(), key=lambda each: each.cost)))[::-1]


def _chairs(way: _PartialAssignment | None) -> Iterator[Slot]:
    while way is not None and way.chair is not None:
        yield way.chair
        way = way.before


def _apart(one: Slot, other: Slot) -> tuple[int, ...]:
    """At which levels two places differ: whatever is in two racks is on two nodes."""
    places = zip((*one.domains, one.node), (*other.domains, other.node), strict=True)
    same = accumulate((mine == theirs for mine, theirs in places), and_)
    return tuple(int(not each) for each in same)


def _sum(costs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each for each in costs if each), strict=True)))


def _swapped(found: list[RankedMember]) -> list[RankedMember]:
    """Members of a kind change places as long as that brings neighbours together."""
    best, looks = count_crossings(found), 0
    improved = True
    while improved:
        improved = False
        for one in range(len(found)):
            for other in range(one):
                if found[one].slot.kind != found[other].slot.kind or looks == _MOST_SWAPS // len(found):
                    continue
                looks += 1
                tried = list(found)
                tried[one], tried[other] = (
                    found[one]._replace(slot=found[other].slot),
                    found[other]._replace(slot=found[one].slot),
                )
                if (less := count_crossings(tried)) < best:
                    found, best, improved = tried, less, True
    return found


def _free(taken: Collection[int]) -> Iterator[int]:
    return (rank for rank in count() if rank not in taken)


def _named(member: Member) -> tuple[tuple[tuple[int, int, str], ...], str]:
    return natural_key(member.name), member.uid
