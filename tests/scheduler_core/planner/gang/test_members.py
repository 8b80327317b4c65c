"""Who is there, from a stream of what comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes, Gang, GangPhase, gang_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from tests.scheduler_core.planner.gang.gang_pods import BOUND, GATED, LLM, RUNNING, member, members

OTHER = GangName("team", "other")


class OfJob(DeclaredSizes):
    """By a Job."""


class OfAlphaGroup(DeclaredSizes):
    """The same kind of object in another version."""


class OfGroup(DeclaredSizes):
    """By a PodGroup."""


def seen(*found: Member, gone: tuple[str, ...] = (), complete: bool = False) -> Batch[Member]:
    return Batch(Member, found, gone, complete)


def said(*found: DeclaredSizes, gone: tuple[str, ...] = (), complete: bool = False) -> Batch[OfJob]:
    return Batch(OfJob, tuple(OfJob(*each) for each in found), gone, complete)


def test_a_gang_gathers_and_goes() -> None:
    roster, three = GangMembers(), members(3)

    assert roster.apply_members(seen(*three[:2])) == {LLM}
    assert roster.get_gang(LLM) == gang_of(LLM, three[:2])
    assert roster.apply_members(seen(three[2])) == {LLM}
    assert roster.get_gang(LLM) == gang_of(LLM, three)
    assert roster.apply_members(seen(gone=("uid-w-1",))) == {LLM}
    assert roster.get_gang(LLM) == gang_of(LLM, [three[0], three[2]])
    assert roster.apply_members(seen(gone=("uid-w-0", "uid-w-2", "uid-w-2"))) == {LLM}
    assert roster.get_gang(LLM) is None
    assert list(roster.all_gangs()) == []


def test_what_did_not_change_touches_nothing_and_is_not_worked_out_again() -> None:
    roster = GangMembers()
    roster.apply_members(seen(*members(3), member("x", gang=OTHER)))
    before = roster.get_gang(LLM)

    assert roster.apply_members(seen(members(3)[1], gone=("uid-stranger",))) == frozenset()
    assert roster.apply_members(seen(member("x", BOUND, gang=OTHER))) == {OTHER}
    assert roster.get_gang(LLM) is before


def test_after_a_list_what_is_not_in_it_is_gone() -> None:
    roster = GangMembers()
    roster.apply_members(seen(*members(3), member("x", gang=OTHER), complete=True))

    assert roster.apply_members(seen(*members(3)[:2], complete=True)) == {LLM, OTHER}
    assert roster.get_gang(OTHER) is None
    assert roster.members_of(LLM) == tuple(members(3)[:2])


def test_a_pod_that_names_another_gang_leaves_the_one_that_it_was_in() -> None:
    roster = GangMembers()
    roster.apply_members(seen(*members(2)))

    assert roster.apply_members(seen(member("w-1", gang=OTHER))) == {LLM, OTHER}
    assert roster.members_of(LLM) == (members(2)[0],)
    assert roster.get_member("uid-w-1") == member("w-1", gang=OTHER)


def test_members_by_rank_those_that_ended_too() -> None:
    roster = GangMembers()
    ended, runs = member("w-1", RUNNING, rank=1, phase="Failed"), member("w-0", RUNNING, rank=0)
    roster.apply_members(seen(ended, runs))

    assert roster.members_of(LLM) == (runs, ended)
    assert roster.members_of(OTHER) == ()
    assert roster.get_member("uid-nobody") is None


def test_sizes_come_from_objects_and_go_with_them() -> None:
    roster = GangMembers()
    roster.apply_members(seen(member("a"), member("b")))

    assert roster.apply_declared_sizes(said(DeclaredSizes("j", (DeclaredSize(LLM, 2), DeclaredSize(OTHER, 3))))) == {
        LLM,
        OTHER,
    }
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))
    assert roster.apply_declared_sizes(said(DeclaredSizes("j", (DeclaredSize(LLM, 3),)))) == {LLM, OTHER}
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 3))
    assert roster.apply_declared_sizes(said(gone=("j", "stranger"))) == {LLM}
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")])


def test_a_list_of_one_kind_of_object_says_nothing_of_the_others() -> None:
    roster = GangMembers()
    roster.apply_members(seen(member("a")))
    roster.apply_declared_sizes(said(DeclaredSizes("j", (DeclaredSize(LLM, 2),)), complete=True))

    assert roster.apply_declared_sizes(Batch(OfGroup, (), is_full_list=True)) == frozenset()
    assert roster.apply_declared_sizes(said(complete=True)) == {LLM}
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a")])


def test_an_object_that_is_served_in_two_versions_counts_until_both_are_gone() -> None:
    roster = GangMembers()
    roster.apply_members(seen(member("a"), member("b")))
    for kind in (OfGroup, OfAlphaGroup):
        roster.apply_declared_sizes(
            Batch(kind, (DeclaredSizes("g", (DeclaredSize(LLM, minimum=2),)),), is_full_list=True)
        )

    roster.apply_declared_sizes(Batch(OfAlphaGroup, (), ("g",)))
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, minimum=2))
    roster.apply_declared_sizes(Batch(OfGroup, (), ("g",)))
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")])


def test_while_one_object_takes_another_s_place_one_of_them_counts() -> None:
    roster = GangMembers()
    roster.apply_members(seen(member("a"), member("b")))
    roster.apply_declared_sizes(
        said(DeclaredSizes("j1", (DeclaredSize(LLM, 3),)), DeclaredSizes("j2", (DeclaredSize(LLM, 2),)))
    )

    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))
    roster.apply_declared_sizes(said(gone=("j1",)))
    assert roster.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))


PODS = st.builds(
    lambda name, state, gang, rank, phase: member(name, state, gang=gang, rank=rank, phase=phase, size=3),
    st.sampled_from("abcdef"),
    st.sampled_from([GATED, BOUND, RUNNING]),
    st.sampled_from([LLM, OTHER]),
    st.none() | st.integers(0, 3),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
)


def told(roster: GangMembers) -> dict[GangName, Gang]:
    return {gang.name: gang for gang in roster.all_gangs()}


@given(st.lists(PODS, unique_by=lambda each: each.uid), st.data())
def test_the_order_of_arrival_makes_no_difference(pods: list[Member], data: st.DataObject) -> None:
    one, other = GangMembers(), GangMembers()
    one.apply_members(seen(*pods, complete=True))
    for each in data.draw(st.permutations(pods)):
        other.apply_members(seen(each))
        list(other.all_gangs())

    assert told(one) == told(other)


def test_it_knows_whether_anybody_refuses_others_on_its_node() -> None:
    roster, first = (
        GangMembers(),
        member("a")._replace(anti_affinity=(PodAffinityTerm("kubernetes.io/hostname", LabelSelector()),)),
    )

    assert not roster.has_anti_affinity
    roster.apply_members(seen(first, member("b")))
    assert roster.has_anti_affinity
    roster.apply_members(seen(first._replace(anti_affinity=())))
    assert not roster.has_anti_affinity


@given(st.lists(st.one_of(PODS, st.sampled_from("abcdef"))))
def test_a_stream_of_events_comes_to_what_a_list_at_its_end_says(events: list[Member | str]) -> None:
    roster = GangMembers()
    there: dict[str, Member] = {}
    for event in events:
        if isinstance(event, str):
            roster.apply_members(seen(gone=(f"uid-{event}",)))
            there.pop(f"uid-{event}", None)
        else:
            roster.apply_members(seen(event))
            there[event.uid] = event
        list(roster.all_gangs())
    listed = GangMembers()
    listed.apply_members(seen(*there.values(), complete=True))

    assert told(roster) == told(listed)


@given(st.lists(PODS, unique_by=lambda each: each.uid))
def test_every_member_that_lives_is_in_one_place(pods: list[Member]) -> None:
    roster = GangMembers()
    roster.apply_members(seen(*pods))

    for gang in roster.all_gangs():
        parts = [*gang.ready, *gang.held, *gang.placed, *gang.surplus]
        alive = [each for each in roster.members_of(gang.name) if each.phase in ("Pending", "Running")]
        assert sorted(each.uid for each in parts) == sorted(each.uid for each in alive)
        if gang.phase is GangPhase.QUEUED:
            assert len(gang.ready) >= gang.min_ready
            assert gang.present_members <= max(3, len(gang.placed) + len(gang.succeeded))
