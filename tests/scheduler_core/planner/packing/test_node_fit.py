"""The number of members that fit on a node: as if placed one after the other, and equal on nodes of one class."""

from __future__ import annotations

from itertools import permutations
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of, state_if
from scheduler_core.evaluation.score import MAX_POINTS
from scheduler_core.planner.packing.node_classes import NodeClasses, NodeCpu
from scheduler_core.planner.packing.node_fit import NO_CPU, MemberKind, NodeFit
from scheduler_core.request.pod_request import InvalidRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record
from tests.scheduler_core.planner.packing.member_groups import POLICY, WISHES, cluster, crew, member, stands

PAIRS, H100 = MACHINES["a100_bridged"](), MACHINES["hgx_h100"]()


def _node_fit(records: list[NodeRecord], *kinds: MemberKind, wanted: int = 8) -> NodeFit:
    return NodeFit(NodeClasses(snapshot_of(records, NOW, POLICY)), kinds, (wanted,) * len(kinds))


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

    assert fitting.max_alone(fitting.nodes.number_of["n"], 0) == most
    assert fitting.fill_node(fitting.nodes.number_of["n"], (8,), (True,), (0,)) == (most,)
    assert fitting.fill_node(fitting.nodes.number_of["n"], (8,), (False,), (0,)) == (0,)


def test_singles_that_may_split_both_pairs_do_not_join_a_required_pair() -> None:
    """The kubelet may admit them first, on any GPUs. A single one leaves a pair whichever GPU it gets."""
    kinds = MemberKind(profile(2, island="required"), POLICY), MemberKind(profile(1), POLICY)
    fitting = _node_fit([record("n", PAIRS, held={})], *kinds)
    node_class = fitting.nodes.number_of["n"]

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

    assert [fitting.max_alone(fitting.nodes.number_of[each.name], 0) for each in records] == [0, 1]
    assert fitting.points_of(fitting.nodes.number_of["unasked"], (1,)) == Reason.RESERVED


def test_too_little_cpu_only_where_it_is_certain() -> None:
    """Requests are known in whole cores, rounded up."""
    assert NodeCpu(8000, 4000, 1).has_room_for([4000, 4000]) is False  # 3,001 + 3,001 + 3,001 at least
    assert NodeCpu(10_000, 4000, 1).has_room_for([4000, 4000])
    assert NodeCpu(None).has_room_for([10**9])
    assert NodeCpu(1000, 8000, 1).has_room_for([0]) is False

    asking = profile(1)
    asking = asking._replace(device_request=asking.device_request._replace(cpu_milli=4000))
    made = record("n", H100, held={})
    small = msgspec.structs.replace(made, machine=msgspec.structs.replace(made.machine, cpu_milli=8000))
    fitting = _node_fit([small], MemberKind(asking, POLICY))

    assert fitting.max_alone(fitting.nodes.number_of["n"], 0) == 2
    assert fitting.points_of(fitting.nodes.number_of["n"], (3,)) == NO_CPU
    assert fitting.points_of(fitting.nodes.number_of["n"], (4,)) == NO_CPU


def test_points_never_exceed_the_bound_per_member() -> None:
    fitting = _node_fit([record("n", H100, held={})], MemberKind(profile(2), POLICY))
    node_class = fitting.nodes.number_of["n"]
    points = [fitting.points_of(node_class, (number,)) for number in range(5)]

    assert points[0] == 0
    assert all(
        isinstance(each, int) and each <= at * fitting.max_points_per_member(node_class, 1)
        for at, each in enumerate(points)
    )
    assert [fitting.max_points_per_member(node_class, least) for least in (0, 5)] == [MAX_POINTS * 1_000_000, 0.0]
    assert (
        _node_fit([], MemberKind(profile(1), POLICY), MemberKind(profile(2), POLICY)).max_points_per_member(0, 1)
        == MAX_POINTS * 1_000_000
    )


def test_nodes_that_differ_in_released_gpus_are_of_different_classes() -> None:
    """All GPUs are free on each. On one the kubelet still reported two: new pods may get other GPUs there."""
    calm = record("calm", PAIRS, held={})
    left = record("left", PAIRS, held={"gone": [0, 1]}, departed=[occupant("gone", 2)])
    unasked = record("unasked", PAIRS, held=None)
    fitting = _node_fit([calm, left, unasked], MemberKind(profile(1), POLICY))

    assert len({fitting.nodes.number_of[name] for name in ("calm", "left", "unasked")}) == 3
    assert fitting.devices_of((3,)) == 3


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_nodes_of_one_class_stay_equal_with_any_members(seed: int) -> None:
    random = Random(seed)
    records = cluster(random, 8)
    kinds = [MemberKind(profile(random.choice((1, 2)), **random.choice(WISHES)), POLICY) for _ in range(2)]
    table = snapshot_of(records, NOW, POLICY)
    fitting = NodeFit(NodeClasses(table), kinds, (2, 2))
    for each in records:
        node_class = fitting.nodes.number_of[each.name]
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
    (each,) = cluster(random, 1)
    each = msgspec.structs.replace(each, machine=msgspec.structs.replace(each.machine, cpu_milli=None))
    members = [member(f"m{at}", random.choice((1, 1, 2)), **random.choice(WISHES)) for at in range(3)]
    table = snapshot_of([each], NOW, POLICY)
    fits = set()
    for order in permutations(members):
        asked = [m.request.profile for m in order if not isinstance(m.request, InvalidRequest)]
        kinds = [MemberKind(profile(each.gpus)._replace(constraints=each.constraints), POLICY) for each in asked]
        fitting = NodeFit(NodeClasses(table), kinds, (1, 1, 1))
        fits.add(isinstance(fitting.points_of(fitting.nodes.number_of[each.name], (1, 1, 1)), int))
    assert fits == {stands(table, each.name, members)}


def test_members_of_one_kind_share_all_results() -> None:
    records = [record(f"n{at}", H100, held={}) for at in range(50)]
    table = snapshot_of(records, NOW, POLICY)
    fitting = NodeFit(NodeClasses(table), [MemberKind(crew(1)[0].request.profile, POLICY)], (8,))  # type: ignore[union-attr]

    assert {fitting.nodes.number_of[each.name] for each in records} == {0}
