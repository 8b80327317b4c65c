"""Ranks: neighbours in rank are neighbours in the fabric, against all ways to seat a few members."""

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
    natural_key,
    sort_by_rank,
)
from tests.scheduler_core.planner.packing.member_groups import crew, member


def _rows(found: Sequence[RankedMember]) -> list[tuple[int, str, str]]:
    return [(each.rank, each.member.name, each.slot.node) for each in found]


def test_names_sort_as_people_count() -> None:
    assert sorted(["w-10", "w-9", "w-010", "a", "1"], key=natural_key) == ["1", "a", "w-9", "w-010", "w-10"]


def test_members_without_ranks_get_theirs_node_by_node() -> None:
    chairs = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]

    found = assign_ranks([[member("w-10"), member("w-9"), member("w-2")]], chairs)

    assert _rows(found) == [(0, "w-2", "a"), (1, "w-9", "a"), (2, "w-10", "b")]


def test_ranks_of_their_own_are_kept() -> None:
    chairs = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]
    members = [member("x", rank=7), member("y", rank=0), member("z", rank=3)]

    assert _rows(assign_ranks([members], chairs)) == [(0, "y", "a"), (3, "z", "a"), (7, "x", "b")]


def test_who_has_none_gets_what_is_free() -> None:
    chairs = [Slot("a", 0), Slot("a", 0), Slot("b", 0)]
    members = [member("x", rank=1), member("z"), member("y")]

    assert _rows(assign_ranks([members], chairs)) == [(0, "y", "a"), (1, "x", "a"), (2, "z", "b")]
    assert _rows(assign_ranks([members[:1]], chairs[:1], taken={0, 2})) == [(1, "x", "a")]
    assert _rows(assign_ranks([members[1:]], chairs[:2], taken={0, 2})) == [(1, "y", "a"), (3, "z", "a")]


def test_ranks_that_two_members_have_are_no_ranks_of_the_gang() -> None:
    """A master and its workers are counted apart."""
    chairs = [Slot("a", 0), Slot("a", 0)]
    members = [member("worker", rank=0), member("master", rank=0)]

    assert _rows(assign_ranks([members], chairs)) == [(0, "master", "a"), (1, "worker", "a")]
    assert _rows(assign_ranks([members[:1]], chairs[:1], taken={0})) == [(1, "worker", "a")]
    assert [each.name for each in sort_by_rank(members)] == ["master", "worker"]


@pytest.mark.parametrize(
    ("members", "names"),
    [
        pytest.param([member("b", rank=0), member("a", rank=1)], ["b", "a"], id="by rank"),
        pytest.param([member("b"), member("a", rank=1)], ["a", "b"], id="those with a rank first"),
        pytest.param([member("w-10"), member("w-9")], ["w-9", "w-10"], id="by name"),
    ],
)
def test_where_there_are_too_few_places_the_last_get_none(members: list[Member], names: list[str]) -> None:
    assert [each.name for each in sort_by_rank(members)] == names


def test_members_of_two_kinds_change_places_with_their_like() -> None:
    """0 and 1 of one kind, 2 and 3 of the other: put in order each pair of neighbours would be on two nodes."""
    chairs = [Slot("a", 0), Slot("a", 1), Slot("b", 0), Slot("b", 1)]
    kinds = [[member("m0", rank=0), member("m1", rank=1)], [member("m2", rank=2), member("m3", rank=3)]]

    found = assign_ranks(kinds, chairs)

    assert count_crossings(found) == (2,)
    assert [each.rank for each in found] == [0, 1, 2, 3]
    assert count_crossings([]) == ()


def _chairs(random: Random, kinds: int) -> list[Slot]:
    """As ``plan`` orders them: near nodes one after the other."""
    nodes = sorted(
        (
            (random.choice("xy"), random.choice("pq")),
            f"n{at}",
            [random.randrange(kinds) for _ in range(random.randint(1, 3))],
        )
        for at in range(3)
    )
    return [Slot(name, kind, near) for near, name, held in nodes for kind in sorted(held)]


def _crew(random: Random, chairs: Sequence[Slot], kinds: int, *, own: bool) -> list[list[Member]]:
    ranks = iter(random.sample(range(20), len(chairs)))
    found: list[list[Member]] = [[] for _ in range(kinds)]
    for at, chair in enumerate(chairs):
        found[chair.kind].append(member(f"m{at}", rank=next(ranks) if own else None))
    return found


def _best(kinds: Sequence[Sequence[Member]], chairs: Sequence[Slot], found: Sequence[RankedMember]) -> tuple[int, ...]:
    """Over all ways to seat them in the order of their ranks."""
    places = [[chair for chair in chairs if chair.kind == at] for at in range(len(kinds))]
    kind_of = {each.uid: at for at, kind in enumerate(kinds) for each in kind}
    least = count_crossings(found)
    for seating in product(*(set(permutations(those)) for those in places)):
        waiting = [iter(those) for those in seating]
        tried = [each._replace(slot=next(waiting[kind_of[each.member.uid]])) for each in found]
        least = min(least, count_crossings(tried))
    return least


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_other_seating_has_fewer_neighbours_apart(seed: int, own: bool) -> None:
    random = Random(seed)
    kinds = random.choice((1, 2))
    chairs = _chairs(random, kinds)[:7]
    members = _crew(random, chairs, kinds, own=own)

    found = assign_ranks(members, chairs)

    assert sorted(each.member.uid for each in found) == sorted(each.uid for kind in members for each in kind)
    assert sorted(each.slot for each in found) == sorted(chairs)
    ranks = [each.rank for each in found]
    assert ranks == (sorted(ranks) if own else list(range(len(chairs))))
    assert all(each.rank == each.member.gang_request.rank for each in found) is own or not own
    assert count_crossings(found) == _best(members, chairs, found)


@pytest.mark.parametrize("number", [6, 300])
def test_a_large_gang_of_two_kinds_is_seated_in_time(number: int) -> None:
    """Not all exchanges are tried then."""
    kinds = [[member(f"m{at}-{kind}", rank=2 * at + kind) for at in range(number)] for kind in range(2)]
    chairs = [Slot(f"n{at:03}", kind) for at in range(number) for kind in range(2)]

    assert count_crossings(assign_ranks(kinds, chairs)) == (number - 1,)


def test_all_of_one_kind_in_order_cross_only_from_node_to_node() -> None:
    chairs = [Slot(f"n{at // 8}", 0, (f"r{at // 16}",)) for at in range(32)]

    assert count_crossings(assign_ranks([crew(32)], chairs)) == (1, 3)


def test_in_a_gang_of_two_kinds_that_is_no_small_one_members_change_places() -> None:
    """Two of a kind, two of the other, and so on; each node takes one and one. 15 neighbours, of whom 8 pairs can meet.

    In order each of the 15 would be apart.
    """
    kinds: list[list[Member]] = [[], []]
    for rank in range(16):
        kinds[rank // 2 % 2].append(member(f"m{rank}", rank=rank))
    chairs = [Slot(f"n{at}", kind) for at in range(8) for kind in range(2)]

    assert count_crossings(assign_ranks(kinds, chairs)) == (8,)
