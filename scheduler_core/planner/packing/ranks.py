"""Assign members to slots so that neighbours in rank are near each other in the topology. Pure.

Slots come node by node, near nodes one after the other. Members with declared ranks keep them and are assigned in that
order; other members get ranks in the order of their slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from operator import and_
from typing import NamedTuple

from scheduler_core.planner.gang.gang import by_rank, natural_key
from scheduler_core.planner.gang.member import Member

# Limits for gangs with several kinds of members: up to so many slots all assignments are tried, else swaps.
_MAX_SLOTS = 12
_MAX_ASSIGNMENTS = 1 << 11
_MAX_SWAPS = 1 << 16


class Slot(NamedTuple):
    """A slot on a node for one member of a kind."""

    node: str
    kind: int
    domains: tuple[str, ...] = ()  # domains of the node, widest first


class RankedMember(NamedTuple):
    """A member, its slot and its rank."""

    member: Member
    slot: Slot
    rank: int


def sort_by_rank(members: Sequence[Member]) -> list[Member]:
    """Sort members by declared rank, then name; by name alone if two declare the same rank."""
    own = [each.gang_request.rank for each in members if each.gang_request.rank is not None]
    return sorted(members, key=by_rank if len(own) == len(set(own)) else _name_key)


def assign_ranks(
    kinds: Sequence[Sequence[Member]], slots: Sequence[Slot], taken: Collection[int] = ()
) -> list[RankedMember]:
    """Return the slot and rank of each member. ``kinds``: as many members of each kind as it has slots.

    ``taken``: ranks of placed siblings.
    """
    members = [each for kind in kinds for each in kind]
    own = [each.gang_request.rank for each in members if each.gang_request.rank is not None]
    if not own or len(own) > len(set(own)) or not set(own).isdisjoint(taken):
        ranks = _free(taken)
        waiting = [iter(sorted(kind, key=_name_key)) for kind in kinds]
        return [RankedMember(next(waiting[slot.kind]), slot, next(ranks)) for slot in slots]
    return _assign_with_ranks(kinds, slots, {*taken, *own})


def count_crossings(found: Sequence[RankedMember]) -> tuple[int, ...]:
    """Count neighbours in rank in different domains, widest level first, and last on different nodes."""
    return _sum(_differences(one.slot, other.slot) for one, other in pairwise(found))


def _assign_with_ranks(
    kinds: Sequence[Sequence[Member]], slots: Sequence[Slot], taken: Collection[int]
) -> list[RankedMember]:
    """Give free ranks to members without one; then assign all in order of rank, each to the next slot of its kind."""
    free = _free(taken)
    unranked = sorted((each for kind in kinds for each in kind if each.gang_request.rank is None), key=_name_key)
    rank_of = {each.uid: next(free) for each in unranked}
    waiting: defaultdict[int, Iterator[Slot]] = defaultdict(lambda: iter(()))
    for at in range(len(kinds)):
        waiting[at] = iter([slot for slot in slots if slot.kind == at])
    ranked = [
        (each.gang_request.rank if each.gang_request.rank is not None else rank_of[each.uid], at, each)
        for at, kind in enumerate(kinds)
        for each in kind
    ]
    ranked.sort(key=lambda each: each[0])
    if len(kinds) > 1 and (assignment := _assignment([at for _, at, _ in ranked], slots)) is not None:
        return [RankedMember(member, slot, rank) for (rank, _, member), slot in zip(ranked, assignment, strict=True)]
    found = [RankedMember(member, next(waiting[at]), rank) for rank, at, member in ranked]
    return found if len(kinds) == 1 else _swap_improvements(found)


class _PartialAssignment(NamedTuple):
    """The best assignment of the first members."""

    cost: tuple[int, ...] = ()
    slot: Slot | None = None
    before: _PartialAssignment | None = None


def _assignment(kinds: Sequence[int], slots: Sequence[Slot]) -> list[Slot] | None:
    """Return the best slots for members of these kinds in this order; None: too many assignments to try."""
    if len(slots) > _MAX_SLOTS:
        return None
    different = sorted(set(slots))
    # By the number of free slots of each, and the last slot used.
    partials = {(tuple(map(slots.count, different)), -1): _PartialAssignment()}
    tried = 0
    for kind in kinds:
        following: dict[tuple[tuple[int, ...], int], _PartialAssignment] = {}
        for (left, _), partial in partials.items():
            for at, slot in enumerate(different):
                if slot.kind != kind or not left[at]:
                    continue
                cost = () if partial.slot is None else _sum((partial.cost, _differences(partial.slot, slot)))
                key = ((*left[:at], left[at] - 1, *left[at + 1 :]), at)
                known = following.get(key)
                if known is None or cost < known.cost:
                    following[key] = _PartialAssignment(cost, slot, partial)
        tried += len(following)
        if tried > _MAX_ASSIGNMENTS:
            return None
        partials = following
    return list(_slots_of(min(partials.values(), key=lambda each: each.cost)))[::-1]


def _slots_of(partial: _PartialAssignment | None) -> Iterator[Slot]:
    while partial is not None and partial.slot is not None:
        yield partial.slot
        partial = partial.before


def _differences(one: Slot, other: Slot) -> tuple[int, ...]:
    """Return the levels at which two slots differ: slots in two racks are also on two nodes."""
    places = zip((*one.domains, one.node), (*other.domains, other.node), strict=True)
    same = accumulate((domain == other_domain for domain, other_domain in places), and_)
    return tuple(int(not each) for each in same)


def _sum(costs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each for each in costs if each), strict=True)))


def _swap_improvements(found: list[RankedMember]) -> list[RankedMember]:
    """Swap members of a kind while that reduces crossings."""
    best, comparisons = count_crossings(found), 0
    improved = True
    while improved:
        improved = False
        for one in range(len(found)):
            for other in range(one):
                if found[one].slot.kind != found[other].slot.kind or comparisons == _MAX_SWAPS // len(found):
                    continue
                comparisons += 1
                swapped = list(found)
                swapped[one], swapped[other] = (
                    found[one]._replace(slot=found[other].slot),
                    found[other]._replace(slot=found[one].slot),
                )
                if (crossings := count_crossings(swapped)) < best:
                    found, best, improved = swapped, crossings, True
    return found


def _free(taken: Collection[int]) -> Iterator[int]:
    return (rank for rank in count() if rank not in taken)


def _name_key(member: Member) -> tuple[tuple[tuple[int, int, str], ...], str]:
    return natural_key(member.name), member.uid
