"""Members of gangs, from batches of watch events."""

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
    """The sizes that Jobs declare."""


class OfAlphaGroup(DeclaredSizes):
    """The same kind of object in another version."""


class OfGroup(DeclaredSizes):
    """The sizes that PodGroups declare."""


def batch(*found: Member, removed: tuple[str, ...] = (), complete: bool = False) -> Batch[Member]:
    return Batch(Member, found, removed, complete)


def declared(*found: DeclaredSizes, removed: tuple[str, ...] = (), complete: bool = False) -> Batch[OfJob]:
    return Batch(OfJob, tuple(OfJob(*each) for each in found), removed, complete)


def test_a_gang_appears_and_disappears() -> None:
    gang_members, three = GangMembers(), members(3)

    assert gang_members.apply_members(batch(*three[:2])) == {LLM}
    assert gang_members.get_gang(LLM) == gang_of(LLM, three[:2])
    assert gang_members.apply_members(batch(three[2])) == {LLM}
    assert gang_members.get_gang(LLM) == gang_of(LLM, three)
    assert gang_members.apply_members(batch(removed=("uid-w-1",))) == {LLM}
    assert gang_members.get_gang(LLM) == gang_of(LLM, [three[0], three[2]])
    assert gang_members.apply_members(batch(removed=("uid-w-0", "uid-w-2", "uid-w-2"))) == {LLM}
    assert gang_members.get_gang(LLM) is None
    assert list(gang_members.all_gangs()) == []


def test_an_unchanged_member_touches_no_gang_and_keeps_the_cache() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*members(3), member("x", gang=OTHER)))
    before = gang_members.get_gang(LLM)

    assert gang_members.apply_members(batch(members(3)[1], removed=("uid-stranger",))) == frozenset()
    assert gang_members.apply_members(batch(member("x", BOUND, gang=OTHER))) == {OTHER}
    assert gang_members.get_gang(LLM) is before


def test_a_full_list_removes_members_that_it_lacks() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*members(3), member("x", gang=OTHER), complete=True))

    assert gang_members.apply_members(batch(*members(3)[:2], complete=True)) == {LLM, OTHER}
    assert gang_members.get_gang(OTHER) is None
    assert gang_members.members_of(LLM) == tuple(members(3)[:2])


def test_the_members_that_a_batch_changes_or_removes_are_known_before() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*members(3), complete=True))
    first, second, _ = members(3)
    bound = member(first.name, BOUND)

    assert gang_members.changed_uids(batch(bound, second)) == {first.uid}
    assert gang_members.changed_uids(batch(second, removed=(first.uid,))) == {first.uid}
    assert gang_members.changed_uids(batch(first, second, complete=True)) == {"uid-w-2"}


def test_a_pod_that_names_another_gang_leaves_its_old_gang() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*members(2)))

    assert gang_members.apply_members(batch(member("w-1", gang=OTHER))) == {LLM, OTHER}
    assert gang_members.members_of(LLM) == (members(2)[0],)
    assert gang_members.get_member("uid-w-1") == member("w-1", gang=OTHER)


def test_members_by_rank_include_finished_ones() -> None:
    gang_members = GangMembers()
    ended, runs = member("w-1", RUNNING, rank=1, phase="Failed"), member("w-0", RUNNING, rank=0)
    gang_members.apply_members(batch(ended, runs))

    assert gang_members.members_of(LLM) == (runs, ended)
    assert gang_members.members_of(OTHER) == ()
    assert gang_members.get_member("uid-nobody") is None


def test_a_changed_member_keeps_its_place_until_its_rank_changes() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*(member(f"w-{rank}", rank=rank) for rank in range(3))))

    gang_members.apply_members(batch(member("w-1", RUNNING, rank=1)))
    assert [each.name for each in gang_members.members_of(LLM)] == ["w-0", "w-1", "w-2"]

    gang_members.apply_members(batch(member("w-1", RUNNING, rank=5)))
    assert [(each.name, each.gang_request.rank) for each in gang_members.members_of(LLM)] == [
        ("w-0", 0),
        ("w-2", 2),
        ("w-1", 5),
    ]


def test_declared_sizes_are_removed_with_their_objects() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(member("a"), member("b")))

    assert gang_members.apply_declared_sizes(
        declared(DeclaredSizes("j", (DeclaredSize(LLM, 2), DeclaredSize(OTHER, 3))))
    ) == {
        LLM,
        OTHER,
    }
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))
    assert gang_members.apply_declared_sizes(declared(DeclaredSizes("j", (DeclaredSize(LLM, 3),)))) == {LLM, OTHER}
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 3))
    assert gang_members.apply_declared_sizes(declared(removed=("j", "stranger"))) == {LLM}
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")])


def test_a_full_list_of_one_kind_keeps_the_sizes_of_others() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(member("a")))
    gang_members.apply_declared_sizes(declared(DeclaredSizes("j", (DeclaredSize(LLM, 2),)), complete=True))

    assert gang_members.apply_declared_sizes(Batch(OfGroup, (), is_full_list=True)) == frozenset()
    assert gang_members.apply_declared_sizes(declared(complete=True)) == {LLM}
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a")])


def test_an_object_that_is_served_in_two_versions_counts_until_both_are_gone() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(member("a"), member("b")))
    for kind in (OfGroup, OfAlphaGroup):
        gang_members.apply_declared_sizes(
            Batch(kind, (DeclaredSizes("g", (DeclaredSize(LLM, minimum=2),)),), is_full_list=True)
        )

    gang_members.apply_declared_sizes(Batch(OfAlphaGroup, (), ("g",)))
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, minimum=2))
    gang_members.apply_declared_sizes(Batch(OfGroup, (), ("g",)))
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")])


def test_while_one_object_replaces_another_one_of_them_counts() -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(member("a"), member("b")))
    gang_members.apply_declared_sizes(
        declared(DeclaredSizes("j1", (DeclaredSize(LLM, 3),)), DeclaredSizes("j2", (DeclaredSize(LLM, 2),)))
    )

    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))
    gang_members.apply_declared_sizes(declared(removed=("j1",)))
    assert gang_members.get_gang(LLM) == gang_of(LLM, [member("a"), member("b")], DeclaredSize(LLM, 2))


PODS = st.builds(
    lambda name, state, gang, rank, phase: member(name, state, gang=gang, rank=rank, phase=phase, size=3),
    st.sampled_from("abcdef"),
    st.sampled_from([GATED, BOUND, RUNNING]),
    st.sampled_from([LLM, OTHER]),
    st.none() | st.integers(0, 3),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
)


def gangs_by_name(gang_members: GangMembers) -> dict[GangName, Gang]:
    return {gang.name: gang for gang in gang_members.all_gangs()}


@given(st.lists(PODS, unique_by=lambda each: each.uid), st.data())
def test_the_order_of_arrival_makes_no_difference(pods: list[Member], data: st.DataObject) -> None:
    one, other = GangMembers(), GangMembers()
    one.apply_members(batch(*pods, complete=True))
    for each in data.draw(st.permutations(pods)):
        other.apply_members(batch(each))
        list(other.all_gangs())

    assert gangs_by_name(one) == gangs_by_name(other)


def test_it_reports_whether_any_member_has_anti_affinity() -> None:
    gang_members, first = (
        GangMembers(),
        member("a")._replace(anti_affinity=(PodAffinityTerm("kubernetes.io/hostname", LabelSelector()),)),
    )

    assert not gang_members.has_anti_affinity
    gang_members.apply_members(batch(first, member("b")))
    assert gang_members.has_anti_affinity
    gang_members.apply_members(batch(first._replace(anti_affinity=())))
    assert not gang_members.has_anti_affinity


@given(st.lists(st.one_of(PODS, st.sampled_from("abcdef"))))
def test_events_give_the_same_result_as_a_list_at_the_end(events: list[Member | str]) -> None:
    gang_members = GangMembers()
    there: dict[str, Member] = {}
    for event in events:
        if isinstance(event, str):
            gang_members.apply_members(batch(removed=(f"uid-{event}",)))
            there.pop(f"uid-{event}", None)
        else:
            gang_members.apply_members(batch(event))
            there[event.uid] = event
        list(gang_members.all_gangs())
    listed = GangMembers()
    listed.apply_members(batch(*there.values(), complete=True))

    assert gangs_by_name(gang_members) == gangs_by_name(listed)


@given(st.lists(PODS, unique_by=lambda each: each.uid))
def test_every_live_member_is_in_one_group(pods: list[Member]) -> None:
    gang_members = GangMembers()
    gang_members.apply_members(batch(*pods))

    for gang in gang_members.all_gangs():
        parts = [*gang.ready, *gang.held, *gang.placed, *gang.surplus]
        alive = [each for each in gang_members.members_of(gang.name) if each.phase in ("Pending", "Running")]
        assert sorted(each.uid for each in parts) == sorted(each.uid for each in alive)
        if gang.phase is GangPhase.QUEUED:
            assert len(gang.ready) >= gang.min_ready
            assert gang.present_members <= max(3, len(gang.placed) + len(gang.succeeded))
