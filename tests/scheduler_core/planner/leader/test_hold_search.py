"""Where room is held, and how much of it."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import Holding, ReservationSpec
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.hold_search import HoldResult, search_hold
from scheduler_core.planner.packing.model import PlanOptions
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.leader.hold_tasks import BUSY, H100, task
from tests.scheduler_core.planner.packing.member_groups import GANG, crew, member


def held(found: HoldResult) -> tuple[Holding, ...]:
    assert found.create is not None
    assert (found.create.namespace, found.create.name) == ("team", "llm-abc")
    assert (found.create.spec.gang, found.create.spec.seats) == ("llm", ())
    return found.create.spec.held


def test_as_much_as_the_members_will_take_where_it_is_free_first() -> None:
    assert held(search_hold(task(crew(3, 4), *BUSY.values()))) == (Holding("a", 8), Holding("b", 4))


def test_all_of_a_node_where_it_matters_which_gpus_become_free() -> None:
    assert held(search_hold(task(crew(1, 4, island="required"), *BUSY.values()))) == (Holding("a", 8),)


@pytest.mark.parametrize(
    ("resource", "share", "held_there"),
    [
        pytest.param("nvidia.com/mig-1g.10gb", None, 3, id="MIG devices"),
        pytest.param("nvidia.com/gpu.shared", None, 3, id="shares of GPUs"),
        pytest.param("nvidia.com/gpu.shared", "20Gi", 16, id="all shares where it matters on which GPU"),
    ],
)
def test_parts_of_gpus_too(resource: str, share: str | None, held_there: int) -> None:
    others = [occupant("on-a", 15, resource=resource)]
    node = record("a", H100, pods=others, allocatable={resource: 16})

    asked = member("w", 3, resource=resource) if share is None else member("w", 3, resource=resource, vram=share)
    found = search_hold(task([asked], node))

    assert held(found) == (Holding("a", held_there, resource),)


def test_of_a_single_pod_its_name_is_that_of_the_reservation() -> None:
    single = member("w", 8)
    alone = Gang(GangName("team", "pod.uid-w"), GangPhase.QUEUED, "", ready=(single,), size=1)

    created = search_hold(task([single], *BUSY.values(), gang=alone)).create

    assert created == CreateReservation("team", "w-abc", ReservationSpec("pod.uid-w", held=(Holding("a", 8),)))


def test_an_elastic_gang_needs_room_for_as_many_as_it_can_start_with() -> None:
    members = crew(5, 8, minimum=2)
    elastic = Gang(GANG, GangPhase.QUEUED, "", ready=tuple(members), size=5, minimum=2)

    found = search_hold(task(members, *BUSY.values(), gang=elastic, options=PlanOptions(minimum=2)))

    assert held(found) == (Holding("a", 8), Holding("b", 8))


def test_a_member_without_gpus_needs_no_room() -> None:
    assert held(search_hold(task([member("launcher", 0), *crew(1, 4)], *BUSY.values()))) == (Holding("a", 4),)


def test_all_in_one_rack_where_that_is_required() -> None:
    found = search_hold(task(crew(2, 8, required="rack"), BUSY["c"], BUSY["a"], BUSY["b"]))

    assert held(found) == (Holding("a", 8), Holding("b", 8))


def test_what_its_own_members_have_will_not_become_free() -> None:
    there = member("first", 4)._replace(node="a")
    shared = record(
        "a",
        H100,
        pods=[occupant("first", 4), occupant("other", 4)],
        held={"first": range(4), "other": range(4, 8)},
    )

    found = search_hold(task(crew(3, 4), shared, BUSY["b"], placed=(there,)))

    assert held(found) == (Holding("a", 4), Holding("b", 8))


def test_what_is_held_already_may_be_enough() -> None:
    members = crew(3, 4)

    def anew(**there: int) -> HoldResult:
        room = tuple(Holding(*each) for each in there.items())
        return search_hold(task(members, *BUSY.values(), held=room))

    assert anew(b=4, c=8) == HoldResult(_gang(members), is_enough=True)
    assert held(anew(b=4, c=4)) == (Holding("a", 8), Holding("b", 4))
    assert held(anew(b=4, lost=8)) == (Holding("a", 8), Holding("b", 4))


def test_what_is_held_may_be_enough_beside_its_own_members() -> None:
    there = member("first", 4)._replace(node="a")
    shared = record("a", H100, pods=[occupant("first", 4), occupant("other", 4)])

    def anew(gpus: int) -> HoldResult:
        return search_hold(task(crew(1, 4), shared, BUSY["b"], placed=(there,), held=(Holding("a", gpus),)))

    assert anew(4).is_enough
    assert held(anew(3)) == (Holding("a", 4),)


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(crew(4, 8), id="more than there is"),
        pytest.param(crew(1, 9), id="more than any node has"),
        pytest.param([member("launcher", 0)], id="no GPU at all"),
    ],
)
def test_nothing_is_held_for_what_would_not_fit_whoever_ends(members: list[Member]) -> None:
    assert search_hold(task(members, *BUSY.values())) == HoldResult(_gang(members))


def test_where_the_time_runs_out_what_is_held_stays() -> None:
    late = task(crew(4, 8), *BUSY.values(), held=(Holding("a", 8),), over=lambda: True)

    assert search_hold(late) == HoldResult(late.gang, is_enough=True)
    assert search_hold(late._replace(held=())) == HoldResult(late.gang)


def _gang(members: list[Member]) -> Gang:
    return task(members, *BUSY.values()).gang
