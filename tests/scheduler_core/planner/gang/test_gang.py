"""State of a gang, by its members."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels.keys import GATE
from scheduler_core.planner.gang.conventions import RANK_STRIDE
from scheduler_core.planner.gang.gang import DeclaredSize, Gang, GangPhase, by_rank, gang_of, natural_key
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.pod_request import InvalidRequest
from tests.scheduler_core.builders import request
from tests.scheduler_core.planner.gang.gang_pods import BOUND, GATED, KUEUE, LLM, RUNNING, member, members

SIZE_UNKNOWN = "the size of the gang is unknown: set gputopo.io/gang-size"
LET_GO: dict[str, Any] = {"node": None}


def of(*there: Member) -> Gang:
    return gang_of(LLM, sorted(there, key=by_rank))


def named(found: tuple[Member, ...]) -> list[str]:
    return [each.name for each in found]


@pytest.mark.parametrize(
    ("there", "phase", "reason"),
    [
        pytest.param([], GangPhase.FINISHED, "no member is running or waiting", id="no members"),
        pytest.param(
            members(3, is_terminating=True), GangPhase.FINISHED, "no member is running or waiting", id="all end"
        ),
        pytest.param(
            members(2, RUNNING, phase="Failed"), GangPhase.FINISHED, "no member is running or waiting", id="all failed"
        ),
        pytest.param(
            members(3, RUNNING, reservation=None),
            GangPhase.ELSEWHERE,
            "no member has gputopo's gate",
            id="another scheduler's",
        ),
        pytest.param(members(3)[:2], GangPhase.WAITING_FOR_MEMBERS, "2 of 3 members are there", id="one is missing"),
        pytest.param(
            members(3, minimum=2)[:1],
            GangPhase.WAITING_FOR_MEMBERS,
            "1 of at least 2 members is there",
            id="elastic, too few",
        ),
        pytest.param(
            [member("a")], GangPhase.WAITING_FOR_MEMBERS, f"1 member there; {SIZE_UNKNOWN}", id="size unknown"
        ),
        pytest.param(members(3), GangPhase.QUEUED, "3 members to be placed", id="all there"),
        pytest.param(members(3, minimum=2)[:2], GangPhase.QUEUED, "2 members to be placed", id="enough there"),
        pytest.param(
            [*members(3)[:2], member("w-2", is_terminating=True, rank=2)],
            GangPhase.WAITING_FOR_MEMBERS,
            "2 of 3 members are there",
            id="one is terminating",
        ),
        pytest.param(
            members(3, gates=(KUEUE, GATE)),
            GangPhase.WAITING,
            f"3 of 3 members are held by {KUEUE}",
            id="held by Kueue",
        ),
        pytest.param(
            [*members(3)[:2], member("w-2", rank=2, gates=(GATE, "example.com/b", KUEUE))],
            GangPhase.WAITING,
            f"1 of 3 members is held by example.com/b, {KUEUE}",
            id="one is held by two other gates",
        ),
        pytest.param(
            [*members(2, RUNNING, size=3), member("w-2", rank=2, gates=(GATE, KUEUE))],
            GangPhase.WAITING,
            f"1 of 3 members is held by {KUEUE}",
            id="replaced member is held",
        ),
        pytest.param(
            [*members(3, minimum=2)[:2], member("w-2", rank=2, gates=(GATE, KUEUE))],
            GangPhase.QUEUED,
            "2 members to be placed",
            id="elastic, the third is held",
        ),
        pytest.param(
            [*members(2, size=3), member("w-2", BOUND, rank=2, node=None)],
            GangPhase.UNGATED,
            "0 of 1 member have nodes",
            id="first patch",
        ),
        pytest.param(
            [*members(2, BOUND), member("w-2", BOUND, rank=2, node=None)],
            GangPhase.UNGATED,
            "2 of 3 members have nodes",
            id="one not bound yet",
        ),
        pytest.param(
            [*members(2, BOUND), member("launcher", BOUND, node=None, reservation=None)],
            GangPhase.UNGATED,
            "2 of 3 members have nodes",
            id="a pod of another scheduler is not bound yet",
        ),
        pytest.param(
            [*members(3, BOUND)[:2], member("w-2", RUNNING, rank=2)],
            GangPhase.BOUND,
            "3 members bound",
            id="not all started",
        ),
        pytest.param(members(3, RUNNING), GangPhase.RUNNING, "3 members started", id="all run"),
        pytest.param(
            [*members(2, size=3), member("launcher", RUNNING, reservation=None)],
            GangPhase.QUEUED,
            "2 members to be placed beside 1",
            id="launcher placed by another scheduler",
        ),
        pytest.param(
            [*members(3, RUNNING)[:2], member("w-2", rank=2)],
            GangPhase.QUEUED,
            "1 member to be placed beside 2",
            id="replaced member",
        ),
        pytest.param(
            [*members(3, RUNNING)[:1], member("w-2", rank=2)],
            GangPhase.WAITING_FOR_MEMBERS,
            "2 of 3 members are there",
            id="the other one is not recreated yet",
        ),
        pytest.param(
            [*members(2, RUNNING, phase="Succeeded", size=3), member("w-2", rank=2, size=3)],
            GangPhase.QUEUED,
            "1 member to be placed beside 2",
            id="the others have succeeded",
        ),
        pytest.param(
            [*members(2, RUNNING, phase="Succeeded", size=3, creator_uid="yesterday"), member("w-2", rank=2, size=3)],
            GangPhase.WAITING_FOR_MEMBERS,
            "1 of 3 members is there",
            id="pods of an earlier gang with that name have succeeded",
        ),
        pytest.param(
            [member("old", RUNNING, phase="Succeeded", rank=0, size=2), member("w-0", rank=0, size=2)],
            GangPhase.WAITING_FOR_MEMBERS,
            "1 of 2 members is there",
            id="succeeded, and was recreated",
        ),
        pytest.param(
            [*members(2, RUNNING, attempt=1), *members(2, attempt=2)],
            GangPhase.QUEUED,
            "2 members to be placed",
            id="members of an earlier attempt",
        ),
        pytest.param(
            [*members(2, RUNNING), member("extra", size=2)],
            GangPhase.RUNNING,
            "2 members started; 1 surplus, gated until another member is gone",
            id="one more than its size",
        ),
        pytest.param(
            [*members(2, BOUND), member("extra", size=2)],
            GangPhase.BOUND,
            "2 members bound; 1 surplus, gated until another member is gone",
            id="one more, not all started",
        ),
        pytest.param(
            [
                member("w-0", BOUND, rank=0, size=2),
                member("launcher", BOUND, node=None, reservation=None),
                member("extra", size=2),
            ],
            GangPhase.UNGATED,
            "1 of 2 members has its node; 1 surplus, gated until another member is gone",
            id="one more, not all bound",
        ),
        pytest.param(
            [member("a", request=InvalidRequest("no such wish"))], GangPhase.REFUSED, "a: no such wish", id="malformed"
        ),
        pytest.param(
            [member("a", size=8), member("b", size=16), member("c", size=8)],
            GangPhase.REFUSED,
            "its members declare different sizes: 8 (a and 1 more), 16 (b)",
            id="sizes differ",
        ),
        pytest.param(
            [member("a", timeout_s=5.0), member("b", timeout_s=90.0)],
            GangPhase.REFUSED,
            "its members declare different timeouts: 5s (a), 90s (b)",
            id="timeouts differ",
        ),
        pytest.param(
            [member("a", required="rack"), member("b", required="clique")],
            GangPhase.REFUSED,
            "its members declare different required topologies: clique (b), rack (a)",
            id="topologies differ",
        ),
        pytest.param(
            [member("a", RUNNING, size=8), member("b", RUNNING, size=16)],
            GangPhase.RUNNING,
            "2 members started",
            id="sizes differ, nothing is gated",
        ),
    ],
)
def test_the_phase_and_reason_of_a_gang(there: list[Member], phase: GangPhase, reason: str) -> None:
    found = gang_of(LLM, sorted(there, key=by_rank))

    assert (found.phase, found.reason) == (phase, reason)


def test_a_gang_has_the_values_that_its_members_declare() -> None:
    launcher = member("launcher", convention="annotations", priority=5, created=90.0)
    workers = members(
        2, size=3, timeout_s=60.0, required="rack", preferred="clique", convention="annotations", created=95.0
    )

    assert of(launcher, *workers) == Gang(
        LLM,
        GangPhase.QUEUED,
        "3 members to be placed",
        ready=(*workers, launcher),
        size=3,
        timeout_s=60.0,
        required="rack",
        preferred="clique",
        convention="annotations",
        priority=0,
        priorities=(0, 5),
        created=90.0,
        newest=95.0,
    )


def of_priority(name: str, gpus: int, priority: int, state: str = GATED) -> Member:
    return member(name, state, request=request(gpus, name), priority=priority)


@pytest.mark.parametrize(
    ("there", "priority", "priorities"),
    [
        pytest.param([of_priority("a", 8, 5), of_priority("b", 8, 5)], 5, (), id="all equal"),
        pytest.param([of_priority("a", 8, 0), of_priority("b", 0, 100)], 0, (), id="an urgent member without GPUs"),
        pytest.param([of_priority("a", 8, 100), of_priority("b", 0, 0)], 100, (), id="a launcher of no priority"),
        pytest.param([of_priority("a", 8, 7), of_priority("b", 1, 100)], 7, (7, 100), id="members with GPUs differ"),
        pytest.param([of_priority("a", 0, 7), of_priority("b", 0, -3)], -3, (-3, 7), id="no member asks for GPUs"),
        pytest.param([of_priority("a", 8, 0, RUNNING), of_priority("b", 8, 9)], 0, (0, 9), id="one has its place"),
        pytest.param(
            [of_priority("a", 8, 9), member("b", request=InvalidRequest("what"))],
            0,
            (0, 9),
            id="one has an invalid request",
        ),
        pytest.param([of_priority("a", 8, 9), member("b", is_terminating=True)], 9, (), id="one is being deleted"),
        pytest.param([of_priority("a", 8, 9), member("b", phase="Failed")], 9, (), id="one has failed"),
    ],
)
def test_the_lowest_priority_of_members_that_ask_for_gpus_counts(
    there: list[Member], priority: int, priorities: tuple[int, ...]
) -> None:
    found = of(*there)

    assert (found.priority, found.priorities) == (priority, priorities)


@pytest.mark.parametrize(
    ("changed", "declared", "size", "minimum", "phase"),
    [
        pytest.param({}, DeclaredSize(LLM, 2), 2, None, GangPhase.QUEUED, id="by its object"),
        pytest.param({}, DeclaredSize(LLM, minimum=2), None, 2, GangPhase.QUEUED, id="at least"),
        pytest.param({}, DeclaredSize(LLM, 8, 4), 8, 4, GangPhase.WAITING_FOR_MEMBERS, id="elastic"),
        pytest.param(
            {}, DeclaredSize(LLM), None, None, GangPhase.WAITING_FOR_MEMBERS, id="object that declares neither"
        ),
        pytest.param({"size": 2}, DeclaredSize(LLM, 8), 2, None, GangPhase.QUEUED, id="pods take precedence"),
        pytest.param(
            {"minimum": 2}, DeclaredSize(LLM, 8), None, 2, GangPhase.QUEUED, id="pods' minimum takes precedence"
        ),
    ],
)
def test_sizes_that_objects_declare(
    changed: dict[str, int], declared: DeclaredSize, size: int | None, minimum: int | None, phase: GangPhase
) -> None:
    found = gang_of(LLM, [member("a", **changed), member("b", **changed)], declared)

    assert (found.size, found.minimum, found.phase) == (size, minimum, phase)


def test_a_minimum_of_an_object_may_be_for_the_start_only() -> None:
    in_order = DeclaredSize(LLM, 2, 1, is_elastic=False)

    found = [gang_of(LLM, [member("a", **more), member("b", **more)], in_order) for more in ({}, {"minimum": 1})]

    assert [each.is_elastic for each in found] == [False, True]  # the annotation says that it is elastic


def test_of_surplus_members_the_oldest_with_our_gate_alone_are_chosen() -> None:
    young, held = member("a", created=200.0), member("b", created=50.0, gates=(GATE, KUEUE))
    old, oldest = member("c", created=100.0), member("d", created=90.0, size=2)

    found = of(young, held, old, oldest)

    assert (named(found.ready), named(found.held), named(found.surplus)) == (["c", "d"], [], ["a", "b"])


def test_of_two_pods_with_one_rank_the_older_counts() -> None:
    first, again = member("w-1", rank=1, size=3, created=90.0), member("w-1b", rank=1, size=3)

    found = of(again, member("w-0", rank=0, size=3), first)

    assert (named(found.ready), named(found.surplus)) == (["w-0", "w-1"], ["w-1b"])
    assert found.reason == "2 of 3 members are there"


def test_a_pod_with_the_rank_of_a_running_pod_waits() -> None:
    found = of(*members(2, RUNNING, size=3), member("again", rank=1, size=3))

    assert (named(found.ready), named(found.surplus)) == ([], ["again"])
    assert found.phase is GangPhase.RUNNING


def test_ranks_of_different_controllers_are_different() -> None:
    found = of(member("a-0", rank=0, size=2, creator_uid="a"), member("b-0", rank=0, size=2, creator_uid="b"))

    assert named(found.ready) == ["a-0", "b-0"]


def test_names_sort_naturally() -> None:
    assert sorted(["w-10", "w-9", "w-010", "a", "1"], key=natural_key) == ["1", "a", "w-9", "w-010", "w-10"]


def test_members_are_sorted_by_rank_then_by_natural_name() -> None:
    there = [member("w-10"), member("w-9"), member("a"), member("z", rank=7), member("y", rank=12)]

    assert [each.name for each in sorted(there, key=by_rank)] == ["z", "y", "a", "w-9", "w-10"]


@pytest.mark.parametrize(
    ("there", "need", "present", "fewest", "complete"),
    [
        pytest.param(members(4), 4, 4, 4, True, id="all"),
        pytest.param(members(4, minimum=2)[:3], 2, 3, 2, False, id="elastic"),
        pytest.param(members(4, minimum=2), 2, 4, 2, True, id="elastic, all"),
        pytest.param([*members(4, RUNNING)[:3], member("w-3", rank=3)], 4, 4, 1, True, id="one replaced"),
        pytest.param([*members(4, RUNNING)[:2], *members(4)[2:]], 4, 4, 2, True, id="two replaced"),
        pytest.param(
            [*members(4, RUNNING, minimum=2)[:3], *members(4, minimum=2)[3:]], 2, 4, 1, True, id="elastic grows"
        ),
        pytest.param([member("a", minimum=1), member("b", minimum=1)], 1, 2, 1, True, id="minimum of the pods"),
        pytest.param([member("a")], None, 1, 1, True, id="unknown"),
    ],
)
def test_number_of_members_to_place_at_once(
    there: list[Member], need: int | None, present: int, fewest: int, *, complete: bool
) -> None:
    found = gang_of(LLM, sorted(there, key=by_rank))

    assert (found.required_members, found.present_members, found.min_ready, found.is_complete) == (
        need,
        present,
        fewest,
        complete,
    )


def test_a_member_without_our_gate_is_not_planned() -> None:
    found = of(member("a", GATED, gates=(KUEUE,)))

    assert found.phase is GangPhase.ELSEWHERE


def test_ranks_of_a_jobset_with_several_jobs_are_consecutive() -> None:
    """Its Jobs have two pods each; the ranks of its pods only order them."""
    found = [member(f"j{job}-{at}", rank=job * RANK_STRIDE + at, size=6) for job in range(3) for at in range(2)]
    found[1] = member("j0-1", BOUND, rank=1, size=6)
    whole = gang_of(LLM, sorted(found, key=by_rank))

    assert [each.gang_request.rank for each in whole.ready] == [0, 2, 3, 4, 5]
    assert [each.gang_request.rank for each in whole.placed] == [1]


def test_ranks_of_an_incomplete_jobset_stay_as_they_are() -> None:
    found = [member(f"j{job}", rank=job * RANK_STRIDE, size=6) for job in (0, 2)]

    assert [each.gang_request.rank for each in gang_of(LLM, found).ready] == [0, 2 * RANK_STRIDE]
