"""Nodes for a capacity hold of a gang that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.disruption import Disruptions, PodDisruption
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from scheduler_core.planner.leader.hold_candidates import (
    Fits,
    HoldCandidate,
    NodeDeadline,
    PodEnds,
    find_hold_nodes,
    node_deadlines,
)
from tests.scheduler_core.builders import occupant, owned_by

SOON, LATER = NodeDeadline("soon", 100.0, 8), NodeDeadline("later", 200.0, 1)
FEW, MANY, FREE = NodeDeadline("few", None, 1), NodeDeadline("many", None, 8), NodeDeadline("free", -inf, 0)
ALL = (MANY, LATER, FREE, FEW, SOON)


def all_of(fits: Callable[[Sequence[str]], bool]) -> Fits:
    """A gang that would use all offered nodes."""
    return lambda nodes: nodes if fits(nodes) else None


def only(*needed: str) -> Fits:
    """A gang that fits on these nodes only."""
    return lambda nodes: needed if set(needed) <= set(nodes) else None


@pytest.mark.parametrize(
    ("count", "held"),
    [
        pytest.param(1, HoldCandidate(("free",), -inf), id="free node"),
        pytest.param(2, HoldCandidate(("free", "soon"), 100.0), id="the node that ends first"),
        pytest.param(3, HoldCandidate(("free", "soon", "later"), 200.0), id="the next node"),
        pytest.param(
            4, HoldCandidate(("free", "soon", "later", "few"), None), id="of nodes without a deadline the smallest"
        ),
        pytest.param(5, HoldCandidate(("free", "soon", "later", "few", "many"), None), id="all"),
        pytest.param(6, None, id="more than there are"),
    ],
)
def test_the_nodes_that_are_free_soonest(count: int, held: HoldCandidate | None) -> None:
    assert find_hold_nodes(ALL, all_of(lambda nodes: len(nodes) >= count)) == held


def test_nodes_of_no_use_are_not_reserved() -> None:
    found = HoldCandidate(("later", "few"), None)

    assert find_hold_nodes(ALL, only("few", "later")) == found
    assert find_hold_nodes(ALL, all_of(lambda nodes: {"later", "few"} <= set(nodes))) == found


def test_of_two_racks_the_one_that_becomes_free_first() -> None:
    racks = {"a": ("free", "many"), "b": ("soon", "few")}

    def fits(nodes: Sequence[str]) -> bool:
        return any(set(rack) <= set(nodes) for rack in racks.values())

    assert find_hold_nodes(ALL, all_of(fits)) == HoldCandidate(("soon", "few"), None)


def test_without_nodes_nothing_fits() -> None:
    assert find_hold_nodes((), all_of(bool)) is None


def test_when_attempts_run_out_more_nodes_than_needed_are_reserved() -> None:
    assert find_hold_nodes(ALL, all_of(lambda nodes: {"later", "few"} <= set(nodes)), tries=1) == HoldCandidate(
        ("free", "soon", "later", "few"), None
    )


@pytest.mark.parametrize(
    ("needed", "asked"),
    [
        pytest.param(1, [1], id="the minimum is enough"),
        pytest.param(100, [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 98, 99], id="as many as needed"),
        pytest.param(1_001, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000], id="more than there are"),
    ],
)
def test_few_nodes_are_tried_before_many(needed: int, asked: list[int]) -> None:
    seen: list[int] = []

    def fits(nodes: Sequence[str]) -> Sequence[str] | None:
        seen.append(len(nodes))
        return nodes if len(nodes) >= needed else None

    find_hold_nodes([NodeDeadline(f"{at:04}", None, 1) for at in range(1_000)], fits, tries=0)

    assert seen == asked


def test_fewer_nodes_than_the_minimum_are_not_tried() -> None:
    seen: list[int] = []

    def fits(nodes: Sequence[str]) -> Sequence[str] | None:
        seen.append(len(nodes))
        return nodes if len(nodes) >= 3 else None

    assert find_hold_nodes(ALL, fits, least=3) == HoldCandidate(("free", "soon", "later"), 200.0)
    assert find_hold_nodes(ALL[:2], fits, least=3) is None
    assert seen == [3, 2]


@given(st.lists(st.integers(0, 9), min_size=1, unique=True), st.sets(st.integers(0, 9), min_size=1))
def test_the_reserved_nodes_are_enough_and_all_are_needed(there: list[int], needed: set[int]) -> None:
    asked: list[int] = []

    def fits(nodes: Sequence[str]) -> bool:
        asked.append(len(nodes))
        return {str(each) for each in needed} <= set(nodes)

    found = find_hold_nodes([NodeDeadline(str(node), float(node), 1) for node in there], all_of(fits))

    assert (None if found is None else {int(node) for node in found.nodes}) == (
        needed if needed <= set(there) else None
    )
    assert len(asked) <= 40


def pod(name: str, gpus: int = 1, owner: str | None = None) -> Occupant:
    held = occupant(name, gpus)
    return owned_by(held, owner) if owner else held


def test_a_node_is_free_when_its_last_pod_has_ended() -> None:
    ends = PodDeadlines()
    ends.apply_pod_deadlines(
        Batch(PodDeadline, (PodDeadline("uid-a", 100.0), PodDeadline("uid-b", 300.0), PodDeadline("uid-c", 50.0)))
    )
    ends.apply_job_deadlines(Batch(DeclaredSizes, (DeclaredSizes("job", (), 200.0), DeclaredSizes("endless", ()))))
    there = {
        "n1": [pod("a", 2), pod("b", owner="job")],
        "n2": [pod("c"), pod("d", 4, owner="endless"), pod("e")],
        "n3": [],
    }

    assert node_deadlines(there, PodEnds(ends, Disruptions())) == (
        NodeDeadline("n1", 200.0, 3),
        NodeDeadline("n2", None, 6),
        NodeDeadline("n3", -inf, 0),
    )


def test_pods_that_terminate_end_with_their_grace_period_and_deadlines_are_followed_by_one() -> None:
    ends, disruptions = PodDeadlines(), Disruptions()
    ends.apply_pod_deadlines(Batch(PodDeadline, (PodDeadline("uid-a", 100.0), PodDeadline("uid-b", 100.0))))
    disruptions.apply_pods(
        Batch(PodDisruption, (PodDisruption("uid-a", gone_by=900.0), PodDisruption("uid-b", grace_s=60.0)))
    )
    there = {"n1": [pod("a")], "n2": [pod("b")], "n3": [pod("c")]}

    found = node_deadlines(there, PodEnds(ends, disruptions, until=500.0, late={"uid-c"}))

    assert found == (
        NodeDeadline("n1", 900.0, 1, is_far=True),
        NodeDeadline("n2", 160.0, 1),
        NodeDeadline("n3", None, 1, is_late=True),
    )


def test_nodes_that_are_free_too_late_are_like_others_and_nodes_with_late_pods_come_last() -> None:
    far, late = NodeDeadline("far", 900.0, 4, is_far=True), NodeDeadline("late", 50.0, 1, is_late=True)

    found = sorted((late, MANY, far, FEW, LATER, FREE), key=lambda each: each.order)

    assert [each.node for each in found] == ["free", "later", "few", "far", "many", "late"]


def test_some_nodes_may_be_preferred_to_nodes_that_are_free_sooner() -> None:
    found = find_hold_nodes(ALL, all_of(lambda nodes: len(nodes) >= 2), first={"many"})

    assert found == HoldCandidate(("many", "free"), None)
