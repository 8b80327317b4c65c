"""Ranks: neighbours in rank are near in the topology, against all assignments of a few members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.ranks import (
    RankedMember,
    Slot,
    assign_ranks,
    count_crossings,
    sort_by_rank,
)
from tests.scheduler_core.planner.packing.member_groups import crew, member


def _rows(found: Sequence[RankedMember]) -> list[tuple[int, str, str]]:
    return [(each.rank, each.member.name, each.slot.node) for each in found]


def test_members_without_ranks_get_theirs_node_by_node() -> None:
    slots = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]

    found = assign_ranks([[member("w-10"), member("w-9"), member("w-2")]], slots)

    assert _rows(found) == [(0, "w-2", "a"), (1, "w-9", "a"), (2, "w-10", "b")]


def test_declared_ranks_are_kept() -> None:
    slots = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]
    members = [member("x", rank=7), member("y", rank=0), member("z", rank=3)]

    assert _rows(assign_ranks([members], slots)) == [(0, "y", "a"), (3, "z", "a"), (7, "x", "b")]


def test_members_without_rank_get_free_ranks() -> None:
    slots = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]
    members = [member("x", rank=1), member("z"), member("y")]

    assert _rows(assign_ranks([members], slots)) == [(0, "y", "a"), (1, "x", "a"), (2, "z", "b")]
    assert _rows(assign_ranks([members[:1]], slots[:1], taken={0, 2})) == [(1, "x", "a")]
    assert _rows(assign_ranks([members[1:]], slots[:2], taken={0, 2})) == [(1, "y", "a"), (3, "z", "a")]


def test_ranks_are_ignored_if_two_members_have_the_same() -> None:
    """As where master and workers are numbered separately."""
    slots = [Slot("a", 0), Slot("a", 0)]
    members = [member("worker", rank=0), member("master", rank=0)]

    assert _rows(assign_ranks([members], slots)) == [(0, "master", "a"), (1, "worker", "a")]
    assert _rows(assign_ranks([members[:1]], slots[:1], taken={0})) == [(1, "worker", "a")]
    assert [each.name for each in sort_by_rank(members)] == ["master", "worker"]


@pytest.mark.parametrize(
    ("members", "names"),
    [
        pytest.param([member("b", rank=0), member("a", rank=1)], ["b", "a"], id="by rank"),
        pytest.param([member("b"), member("a", rank=1)], ["a", "b"], id="ranked members first"),
        pytest.param([member("w-10"), member("w-9")], ["w-9", "w-10"], id="by name"),
    ],
)
def test_the_order_of_members_if_not_all_can_be_placed(members: list[Member], names: list[str]) -> None:
    assert [each.name for each in sort_by_rank(members)] == names


def test_members_of_two_kinds_are_swapped_within_their_kind() -> None:
    """0 and 1 of one kind, 2 and 3 of the other: in order, each pair of neighbours would be on two nodes."""
    slots = [Slot("a", 0), Slot("a", 1), Slot("b", 0), Slot("b", 1)]
    kinds = [[member("m0", rank=0), member("m1", rank=1)], [member("m2", rank=2), member("m3", rank=3)]]

    found = assign_ranks(kinds, slots)

    assert count_crossings(found) == (2,)
    assert [each.rank for each in found] == [0, 1, 2, 3]
    assert count_crossings([]) == ()


def _slots(random: Random, kinds: int) -> list[Slot]:
    """Slots as ``plan_gang`` orders them: near nodes one after the other."""
    nodes = sorted(
        (
            (random.choice("xy"), random.choice("pq")),
            f"n{at}",
            [random.randrange(kinds) for _ in range(random.randint(1, 3))],
        )
        for at in range(3)
    )
    return [Slot(name, kind, near) for near, name, held in nodes for kind in sorted(held)]


def _crew(random: Random, slots: Sequence[Slot], kinds: int, *, own: bool) -> list[list[Member]]:
    ranks = iter(random.sample(range(20), len(slots)))
    found: list[list[Member]] = [[] for _ in range(kinds)]
    for at, chair in enumerate(slots):
        found[chair.kind].append(member(f"m{at}", rank=next(ranks) if own else None))
    return found


def _best(kinds: Sequence[Sequence[Member]], slots: Sequence[Slot], found: Sequence[RankedMember]) -> tuple[int, ...]:
    """Return the fewest crossings of all assignments in the order of ranks."""
    slots_of_kind = [[chair for chair in slots if chair.kind == at] for at in range(len(kinds))]
    kind_of = {each.uid: at for at, kind in enumerate(kinds) for each in kind}
    least = count_crossings(found)
    for assignment in product(*(set(permutations(those)) for those in slots_of_kind)):
        waiting = [iter(those) for those in assignment]
        tried = [each._replace(slot=next(waiting[kind_of[each.member.uid]])) for each in found]
        least = min(least, count_crossings(tried))
    return least


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_other_assignment_has_fewer_crossings(seed: int, own: bool) -> None:
    random = Random(seed)
    kinds = random.choice((1, 2))
    slots = _slots(random, kinds)[:7]
    members = _crew(random, slots, kinds, own=own)

    found = assign_ranks(members, slots)

    assert sorted(each.member.uid for each in found) == sorted(each.uid for kind in members for each in kind)
    assert sorted(each.slot for each in found) == sorted(slots)
    ranks = [each.rank for each in found]
    assert ranks == (sorted(ranks) if own else list(range(len(slots))))
    assert all(each.rank == each.member.gang_request.rank for each in found) is own or not own
    assert count_crossings(found) == _best(members, slots, found)


@pytest.mark.parametrize("number", [6, 300])
def test_a_large_gang_of_two_kinds_is_assigned_in_time(number: int) -> None:
    """Not all swaps are tried then."""
    kinds = [[member(f"m{at}-{kind}", rank=2 * at + kind) for at in range(number)] for kind in range(2)]
    slots = [Slot(f"n{at:03}", kind) for at in range(number) for kind in range(2)]

    assert count_crossings(assign_ranks(kinds, slots)) == (number - 1,)


def test_members_of_one_kind_cross_only_between_nodes() -> None:
    slots = [Slot(f"n{at // 8}", 0, (f"r{at // 16}",)) for at in range(32)]

    assert count_crossings(assign_ranks([crew(32)], slots)) == (1, 3)


def test_members_of_a_larger_gang_of_two_kinds_are_swapped() -> None:
    """Two of a kind, two of the other, and so on; each node takes one and one. 15 neighbours, of whom 8 pairs can meet.

    In order each of the 15 would be apart.
    """
    kinds: list[list[Member]] = [[], []]
    for rank in range(16):
        kinds[rank // 2 % 2].append(member(f"m{rank}", rank=rank))
    slots = [Slot(f"n{at}", kind) for at in range(8) for kind in range(2)]

    assert count_crossings(assign_ranks(kinds, slots)) == (8,)
