"""The number of members that fit on a node: as if placed one after the other, and equal on nodes of one class."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of, state_if
from scheduler_core.evaluation.score import MAX_POINTS
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.node_fit import FitClass, MemberKind, NodeFit
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod_request import InvalidRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record
from tests.scheduler_core.planner.packing.member_groups import (
    POLICY,
    WISHES,
    cluster,
    crew,
    member,
    stands,
    view,
    with_allocatable,
)

PAIRS, H100 = MACHINES["a100_bridged"](), MACHINES["hgx_h100"]()


def _node_fit(records: list[NodeRecord], *kinds: MemberKind, wanted: int = 8) -> NodeFit:
    return NodeFit(NodeClasses(view(*records)), kinds, (wanted,) * len(kinds))


def class_of(fitting: NodeFit, name: str) -> FitClass:
    """The class of a node."""
    return fitting.class_of(fitting.nodes.capacity_of[name])


@pytest.mark.parametrize(
    ("gpus", "wishes", "most"),
    [
        pytest.param(1, {}, 4, id="single GPUs"),
        pytest.param(2, {}, 2, id="pairs"),
        pytest.param(2, {"island": "required"}, 2, id="pairs in one island, in any order of admission"),
        pytest.param(3, {}, 1, id="three of four"),
        pytest.param(3, {"island": "required"}, 0, id="three in one island of two"),
    ],
)
def test_number_of_members_that_fit_on_two_bridged_pairs(gpus: int, wishes: dict[str, str], most: int) -> None:
    fitting = _node_fit([record("n", PAIRS, held={})], MemberKind(profile(gpus, **wishes), POLICY))

    assert fitting.max_alone(class_of(fitting, "n"), 0) == most
    assert fitting.fill_node(class_of(fitting, "n"), (8,), (True,), (0,)) == (most,)
    assert fitting.fill_node(class_of(fitting, "n"), (8,), (False,), (0,)) == (0,)


def test_singles_that_may_split_both_pairs_do_not_join_a_required_pair() -> None:
    """The kubelet may admit them first, on any GPUs. A single one leaves a pair whichever GPU it gets."""
    kinds = MemberKind(profile(2, island="required"), POLICY), MemberKind(profile(1), POLICY)
    fitting = _node_fit([record("n", PAIRS, held={})], *kinds)
    node_class = class_of(fitting, "n")

    assert fitting.points_of(node_class, (1, 2)) == Reason.ISLAND
    assert {load for load, _ in fitting.loads(node_class, (8, 8), (True, True))} == {
        (1, 0), (2, 0), (1, 1), (0, 1), (0, 2), (0, 3), (0, 4),
    }  # fmt: skip
    assert fitting.fill_node(node_class, (8, 8), (True, True), (1, 0)) == (0, 4)
    assert fitting.fill_node(node_class, (1, 8), (True, True), (0, 1)) == (1, 1)


def test_a_pod_on_its_way_to_the_node_keeps_its_required_shape() -> None:
    """One node has no kubelet report; on the other the possible outcomes of each pod are known."""
    coming = occupant("coming", 2, island="required")
    kind = MemberKind(profile(1), POLICY)
    records = [record("unasked", PAIRS, held=None, pods=[coming]), record("asked", PAIRS, held={}, pods=[coming])]
    fitting = _node_fit(records, kind)

    assert [fitting.max_alone(class_of(fitting, each.name), 0) for each in records] == [0, 1]
    assert fitting.points_of(class_of(fitting, "unasked"), (1,)) == Reason.RESERVED


def test_free_cpu_limits_the_members_of_a_node() -> None:
    kind = MemberKind(profile(1), POLICY, NodeLoad(2500, pods=1))
    node = with_allocatable(record("n", H100, held={}), cpu_milli=8000)
    fitting = _node_fit([node], kind)

    assert fitting.max_alone(class_of(fitting, "n"), 0) == 3
    assert fitting.max_of_kind(class_of(fitting, "n"), 0) == 3
    assert fitting.points_of(class_of(fitting, "n"), (4,)) == "Insufficient cpu"


def test_what_is_free_makes_classes_only_where_it_is_scarce() -> None:
    """Nodes for equally many members are equal, whatever else is free there."""
    free = {"a": 90_000, "b": 50_000, "c": 7_900, "d": 7_600, "e": 4_000}
    nodes = [with_allocatable(record(name, H100, held={}), memory=amount) for name, amount in free.items()]
    fitting = _node_fit(nodes, MemberKind(profile(1), POLICY, NodeLoad(0, 2500, pods=1)))

    classes = {name: class_of(fitting, name) for name in free}

    assert classes["a"] == classes["b"]
    assert classes["a"].free is None
    assert classes["c"] == classes["d"] != classes["e"]
    assert len({each.number for each in classes.values()}) == 1


def test_points_never_exceed_the_bound_per_member() -> None:
    fitting = _node_fit([record("n", H100, held={})], MemberKind(profile(2), POLICY))
    node_class = class_of(fitting, "n")
    points = [fitting.points_of(node_class, (number,)) for number in range(5)]

    assert points[0] == 0
    assert all(
        isinstance(each, int) and each <= at * fitting.max_points_per_member(node_class, 1)
        for at, each in enumerate(points)
    )
    assert [fitting.max_points_per_member(node_class, least) for least in (0, 5)] == [MAX_POINTS * 1_000_000, 0.0]
    assert (
        _node_fit([], MemberKind(profile(1), POLICY), MemberKind(profile(2), POLICY)).max_points_per_member(
            FitClass(0), 1
        )
        == MAX_POINTS * 1_000_000
    )


def test_nodes_that_differ_in_released_gpus_are_of_different_classes() -> None:
    """All GPUs are free on each. On one the kubelet still reported two: new pods may get other GPUs there."""
    calm = record("calm", PAIRS, held={})
    left = record("left", PAIRS, held={"gone": [0, 1]}, departed=[occupant("gone", 2)])
    unasked = record("unasked", PAIRS, held=None)
    fitting = _node_fit([calm, left, unasked], MemberKind(profile(1), POLICY))

    assert len({class_of(fitting, name) for name in ("calm", "left", "unasked")}) == 3
    assert fitting.devices_of((3,)) == 3


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_nodes_of_one_class_stay_equal_with_any_members(seed: int) -> None:
    random = Random(seed)
    records = cluster(random, 8)
    kinds = [MemberKind(profile(random.choice((1, 2)), **random.choice(WISHES)), POLICY) for _ in range(2)]
    table = snapshot_of(records, NOW, POLICY)
    fitting = NodeFit(NodeClasses(view(*records)), kinds, (2, 2))
    for each in records:
        node_class = FitClass(class_of(fitting, each.name).number)
        assert all(fitting.max_alone(node_class, at) <= fitting.max_of_kind(node_class, at) for at in range(2))
        for load, _ in fitting.loads(node_class, (2, 2), (True, True)):
            pods = [
                Occupant(f"~{at}{serial}", "", "", kinds[at].profile)
                for at, number in enumerate(load)
                for serial in range(number)
            ]
            assert state_if(table, each.name, (*each.pods, *pods)) is fitting.state_with(node_class, load)


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_the_order_of_members_makes_no_difference(seed: int) -> None:
    """A load that fits, fits in every order of admission; a load that does not, fails in some order."""
    random = Random(seed)
    (node,) = cluster(random, 1)
    node = with_allocatable(node, cpu_milli=None, memory=None, max_pods=None)
    members = [member(f"m{at}", random.choice((1, 1, 2)), **random.choice(WISHES)) for at in range(3)]
    table = snapshot_of([node], NOW, POLICY)
    fits = set()
    for order in permutations(members):
        asked = [m.request.profile for m in order if not isinstance(m.request, InvalidRequest)]
        kinds = [MemberKind(profile(each.gpus)._replace(constraints=each.constraints), POLICY) for each in asked]
        fitting = NodeFit(NodeClasses(view(node)), kinds, (1, 1, 1))
        fits.add(isinstance(fitting.points_of(class_of(fitting, node.name), (1, 1, 1)), int))
    assert fits == {stands(table, node.name, members)}


def test_members_of_one_kind_share_all_results() -> None:
    records = [record(f"n{at}", H100, held={}) for at in range(50)]
    fitting = NodeFit(NodeClasses(view(*records)), [MemberKind(crew(1)[0].request.profile, POLICY)], (8,))  # type: ignore[union-attr]

    assert {class_of(fitting, each.name) for each in records} == {FitClass(0)}
