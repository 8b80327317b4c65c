"""The nodes and devices of a capacity hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.reservations import HeldCapacity, ReservationSpec
from gputopo.timestamps import format_timestamp
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.hold_search import HoldResult, search_hold
from scheduler_core.planner.packing.model import PlanOptions
from scheduler_core.request.node_load import NodeLoad
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.leader.hold_tasks import BUSY, H100, task
from tests.scheduler_core.planner.packing.member_groups import GANG, crew, member, with_allocatable

SIX = {name: record(name, H100, pods=[occupant(f"on-{name}", 8)]) for name in "abcdef"}


def held(found: HoldResult) -> tuple[HeldCapacity, ...]:
    assert found.create is not None
    assert (found.create.namespace, found.create.name) == ("team", "llm-abc")
    assert (found.create.spec.gang, found.create.spec.seats) == ("llm", ())
    return found.create.spec.held


def test_the_hold_is_what_members_need_on_nodes_that_are_free_first() -> None:
    assert held(search_hold(task(crew(3, 4), *BUSY.values()))) == (HeldCapacity("a", 8), HeldCapacity("b", 4))


def test_the_hold_is_a_whole_node_if_members_need_an_island() -> None:
    assert held(search_hold(task(crew(1, 4, island="required"), *BUSY.values()))) == (HeldCapacity("a", 8),)


def test_no_node_is_held_on_which_pods_without_gpus_leave_nothing_for_the_members() -> None:
    """When the pods that use its GPUs have ended. The requests of these pods become free with their GPUs."""
    there = [
        msgspec.structs.replace(each, pods=tuple(pod._replace(load=NodeLoad(4000, pods=1)) for pod in each.pods))
        for each in BUSY.values()
    ]
    nodes = [with_allocatable(each, cpu_milli=8000) for each in there]
    gang = [each._replace(load=NodeLoad(6000, pods=1)) for each in crew(2, 8)]
    asked = task(gang, *nodes)
    full = asked._replace(view=asked.view._replace(others={"a": NodeLoad(3000, pods=1)}))
    fuller = asked._replace(view=asked.view._replace(others=dict.fromkeys("ab", NodeLoad(3000, pods=1))))

    assert held(search_hold(asked)) == (HeldCapacity("a", 8), HeldCapacity("b", 8))
    assert held(search_hold(full)) == (HeldCapacity("b", 8), HeldCapacity("c", 8))
    assert search_hold(fuller).create is None


@pytest.mark.parametrize(
    ("resource", "share", "held_there"),
    [
        pytest.param("nvidia.com/mig-1g.10gb", None, 3, id="MIG devices"),
        pytest.param("nvidia.com/gpu.shared", None, 3, id="shares of GPUs"),
        pytest.param("nvidia.com/gpu.shared", "20Gi", 16, id="all shares where it matters on which GPU"),
    ],
)
def test_mig_devices_and_shares_are_held(resource: str, share: str | None, held_there: int) -> None:
    others = [occupant("on-a", 15, resource=resource)]
    node = record("a", H100, pods=others, allocatable={resource: 16})

    asked = member("w", 3, resource=resource) if share is None else member("w", 3, resource=resource, vram=share)
    found = search_hold(task([asked], node))

    assert held(found) == (HeldCapacity("a", held_there, resource),)


def test_the_hold_of_a_single_pod_has_the_name_of_the_pod() -> None:
    single = member("w", 8)
    alone = Gang(GangName("team", "pod.uid-w"), GangPhase.QUEUED, "", ready=(single,), size=1)

    created = search_hold(task([single], *BUSY.values(), gang=alone)).create

    spec = ReservationSpec("pod.uid-w", held=(HeldCapacity("a", 8),), held_since=format_timestamp(NOW))
    assert created == CreateReservation("team", "w-abc", spec)


@pytest.mark.parametrize("wishes", [{}, {"vram": "20Gi"}], ids=["any devices", "particular devices: all are held"])
def test_for_few_devices_of_each_of_many_nodes_none_are_held(wishes: dict[str, str]) -> None:
    """They would keep pods that need whole nodes from all these nodes."""
    found = search_hold(task(_apart(1, 1, 1, **wishes), *BUSY.values()))

    assert found.create is None
    assert found.reason == "it requests 3 of the 24 GPUs of 3 nodes: a hold is for at least half of them"


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param((4, 4, 1), id="half of all nodes but one"),
        pytest.param((8, 1, 1), id="one node as a whole"),
        pytest.param((6, 5, 5), id="more than half"),
    ],
)
def test_half_of_the_devices_of_the_nodes_is_enough_and_one_node_does_not_count(gpus: tuple[int, ...]) -> None:
    found = search_hold(task(_apart(*gpus), *BUSY.values()))

    assert sorted(each.gpus for each in held(found)) == sorted(gpus)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_each_hold_has_at_least_half_of_the_devices_of_its_nodes_but_one(gpus: list[int]) -> None:
    found = search_hold(task(_apart(*gpus), *SIX.values()))

    counted = sorted(gpus)[1:]
    assert (found.create is not None) == (2 * sum(counted) >= 8 * len(counted))
    assert (found.reason is None) == (found.create is not None)


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.sets(st.sampled_from("abcdef")))
def test_a_hold_leaves_only_nodes_with_late_pods_and_only_for_nodes_without(present: set[str], late: set[str]) -> None:
    members = crew(len(present), 8)
    there = tuple(HeldCapacity(name, 8) for name in sorted(present))
    plain = task(members, *SIX.values())
    searched = plain._replace(
        held=there, late_nodes=present & late, ends=plain.ends._replace(late={f"uid-on-{name}" for name in late})
    )

    found = search_hold(searched)

    spare = set(SIX) - present - late
    if not (present & late and spare):
        assert found == HoldResult(plain.gang, is_enough=True)
        return
    moved = {each.node for each in held(found)}
    assert moved >= present - late
    assert len(moved & late) == max(0, len(present & late) - len(spare))
    assert found.create is not None
    again = searched._replace(held=found.create.spec.held, late_nodes=moved & late)
    assert search_hold(again).is_enough


def test_the_hold_of_an_elastic_gang_is_for_its_minimum() -> None:
    members = crew(5, 8, minimum=2)
    elastic = Gang(GANG, GangPhase.QUEUED, "", ready=tuple(members), size=5, minimum=2)

    found = search_hold(task(members, *BUSY.values(), gang=elastic, options=PlanOptions(minimum=2)))

    assert held(found) == (HeldCapacity("a", 8), HeldCapacity("b", 8))


def test_a_member_without_gpus_needs_no_hold() -> None:
    assert held(search_hold(task([member("launcher", 0), *crew(1, 4)], *BUSY.values()))) == (HeldCapacity("a", 4),)


def test_the_hold_is_in_one_rack_if_required() -> None:
    found = search_hold(task(crew(2, 8, required="rack"), BUSY["c"], BUSY["a"], BUSY["b"]))

    assert held(found) == (HeldCapacity("a", 8), HeldCapacity("b", 8))


def test_gpus_of_own_members_will_not_become_free() -> None:
    there = member("first", 4)._replace(node="a")
    shared = record(
        "a",
        H100,
        pods=[occupant("first", 4), occupant("other", 4)],
        held={"first": range(4), "other": range(4, 8)},
    )

    found = search_hold(task(crew(3, 4), shared, BUSY["b"], placed=(there,)))

    assert held(found) == (HeldCapacity("a", 4), HeldCapacity("b", 8))


def test_the_present_hold_may_be_enough() -> None:
    members = crew(3, 4)

    def search_again(**there: int) -> HoldResult:
        present = tuple(HeldCapacity(*each) for each in there.items())
        return search_hold(task(members, *BUSY.values(), held=present))

    assert search_again(b=4, c=8) == HoldResult(_gang(members), is_enough=True)
    assert held(search_again(b=4, c=4)) == (HeldCapacity("a", 8), HeldCapacity("b", 4))
    assert held(search_again(b=4, lost=8)) == (HeldCapacity("a", 8), HeldCapacity("b", 4))


def test_the_present_hold_may_be_enough_beside_own_members() -> None:
    there = member("first", 4)._replace(node="a")
    shared = record("a", H100, pods=[occupant("first", 4), occupant("other", 4)])

    def search_again(gpus: int) -> HoldResult:
        return search_hold(task(crew(1, 4), shared, BUSY["b"], placed=(there,), held=(HeldCapacity("a", gpus),)))

    assert search_again(4).is_enough
    assert held(search_again(3)) == (HeldCapacity("a", 4),)


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(crew(4, 8), id="more than there is"),
        pytest.param(crew(1, 9), id="more than any node has"),
        pytest.param([member("launcher", 0)], id="no GPU at all"),
    ],
)
def test_nothing_is_held_for_a_gang_that_never_fits(members: list[Member]) -> None:
    assert search_hold(task(members, *BUSY.values())) == HoldResult(_gang(members))


def test_the_hold_stays_when_the_search_runs_out_of_time() -> None:
    late = task(crew(4, 8), *BUSY.values(), held=(HeldCapacity("a", 8),), is_out_of_time=lambda: True)

    assert search_hold(late) == HoldResult(late.gang, is_enough=True)
    assert search_hold(late._replace(held=())) == HoldResult(late.gang)


def _apart(*gpus: int, **wishes: Any) -> list[Member]:
    """Return members of so many GPUs that may not share a node."""
    return [member(f"w-{at}", number, role="x", refuses="x", **wishes) for at, number in enumerate(gpus)]


def _gang(members: list[Member]) -> Gang:
    return task(members, *BUSY.values()).gang
