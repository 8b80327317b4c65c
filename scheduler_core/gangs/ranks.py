"""Which member goes to which place, so that neighbours in rank are neighbours in the fabric. Pure.

Places come node by node, near nodes one after the other. Members with ranks of their own keep them, and are put there
in that order; the others get theirs from where they are, node by node.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

from scheduler_core.gangs.member import Member

_DIGITS = re.compile(r"(\d+)", re.ASCII)
_MOST_SWAPS = 1 << 16  # looked at, for gangs whose members ask for different things


class Chair(NamedTuple):
    """A place for one member of a kind."""

    node: str
    kind: int
    near: tuple[str, ...] = ()  # domains of the node, widest first


class Ranked(NamedTuple):
    """A member, its place and its rank."""

    member: Member
    chair: Chair
    rank: int


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """How people sort names: worker-2 before worker-10."""
    parts = (part for part in _DIGITS.split(text) if part)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def in_order(members: Sequence[Member]) -> list[Member]:
    """By their own ranks, where all of these have one; else by name."""
    own = [each.wanted.rank for each in members if each.wanted.rank is not None]
    if len(own) == len(set(own)):
        return sorted(members, key=lambda each: (each.wanted.rank is None, each.wanted.rank or 0, *_named(each)))
    return sorted(members, key=_named)


def ranked(kinds: Sequence[Sequence[Member]], chairs: Sequence[Chair], taken: Collection[int] = ()) -> list[Ranked]:
    """Everybody's place, by rank. ``kinds``: as many members of each kind as there are chairs for it.

    ``taken``: ranks of siblings that have their nodes already.
    """
    members = [each for kind in kinds for each in kind]
    own = [each.wanted.rank for each in members if each.wanted.rank is not None]
    if not own or len(own) > len(set(own)) or not set(own).isdisjoint(taken):
        ranks = _free(taken)
        waiting = [iter(sorted(kind, key=_named)) for kind in kinds]
        return [Ranked(next(waiting[chair.kind]), chair, next(ranks)) for chair in chairs]
    return _kept(kinds, chairs, {*taken, *own})


def crossings(found: Sequence[Ranked]) -> tuple[int, ...]:
    """Neighbours in rank that are in different domains, widest level first, and last on different nodes."""
    places = [(*each.chair.near, each.chair.node) for each in found]
    levels = len(places[0]) if places else 0
    return tuple(
        sum(one[: level + 1] != other[: level + 1] for one, other in pairwise(places)) for level in range(levels)
    )


def _kept(kinds: Sequence[Sequence[Member]], chairs: Sequence[Chair], taken: Collection[int]) -> list[Ranked]:
    """Those without a rank get what is free; then all are put in order of rank, each on the next chair for its kind."""
    free = _free(taken)
    named = sorted((each for kind in kinds for each in kind if each.wanted.rank is None), key=_named)
    rank_of = {each.uid: next(free) for each in named}
    waiting: defaultdict[int, Iterator[Chair]] = defaultdict(lambda: iter(()))
    for at in range(len(kinds)):
        waiting[at] = iter([chair for chair in chairs if chair.kind == at])
    everybody = [
        (each.wanted.rank if each.wanted.rank is not None else rank_of[each.uid], at, each)
        for at, kind in enumerate(kinds)
        for each in kind
    ]
    found = [
        Ranked(member, next(waiting[at]), rank) for rank, at, member in sorted(everybody, key=lambda each: each[0])
    ]
    return found if len(kinds) == 1 else _swapped(found)


def _swapped(found: list[Ranked]) -> list[Ranked]:
    """Members of a kind change places as long as that brings neighbours together."""
    best, looks = crossings(found), 0
    improved = True
    while improved:
        improved = False
        for one in range(len(found)):
            for other in range(one):
                if found[one].chair.kind != found[other].chair.kind or looks == _MOST_SWAPS // len(found):
                    continue
                looks += 1
                tried = list(found)
                tried[one], tried[other] = (
                    found[one]._replace(chair=found[other].chair),
                    found[other]._replace(chair=found[one].chair),
                )
                if (less := crossings(tried)) < best:
                    found, best, improved = tried, less, True
    return found


def _free(taken: Collection[int]) -> Iterator[int]:
    return (rank for rank in count() if rank not in taken)


def _named(member: Member) -> tuple[tuple[tuple[int, int, str], ...], str]:
    return natural(member.name), member.uid
