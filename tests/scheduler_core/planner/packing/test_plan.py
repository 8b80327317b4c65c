"""Plans of gangs: invariants against all assignments of small gangs, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import PlannedMember
from gputopo.kube.taints import Taint
from gputopo.labels.reasons import Reason
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_state import product_of
from scheduler_core.cache.node_table import state_if
from scheduler_core.evaluation.evaluate import evaluate_state
from scheduler_core.evaluation.score import Score
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON
from scheduler_core.planner.packing.diagnosis import AVOIDED_REASON, NO_NODE_REASON, OUT_OF_TIME_REASON
from scheduler_core.planner.packing.free_resources import free_resources
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions, Unplaced
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.planner.packing.singles import SinglePodPlacer
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import InvalidRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.packing.member_groups import (
    BLOCK,
    CLIQUE,
    POLICY,
    RACK,
    WISHES,
    asked,
    by_node,
    cluster,
    crew,
    member,
    occupants,
    quarrel,
    random_load,
    random_others,
    refusing,
    selecting,
    stands,
    view,
    ways,
    with_allocatable,
)

H100, PAIRS, RTX = MACHINES["hgx_h100"](), MACHINES["a100_bridged"](), MACHINES["rtx4090"]()


def _planned(members: Sequence[Member], seen: NodeView, **options: Any) -> GangPlan:
    found = plan_gang(members, seen, PlanOptions(**options))
    assert isinstance(found, GangPlan), found
    return found


def _unplaced(members: Sequence[Member], seen: NodeView, **options: Any) -> Unplaced:
    found = plan_gang(members, seen, PlanOptions(**options))
    assert isinstance(found, Unplaced), found
    return found


def _nodes(found: GangPlan) -> dict[str, int]:
    """Members by node."""
    counts: dict[str, int] = {}
    for seat in found.seats:
        if seat.node is not None:
            counts[seat.node] = counts.get(seat.node, 0) + 1
    return counts


def _empty(*names: str, **labels: Mapping[str, str]) -> NodeView:
    return view(*(record(name, H100, held={}) for name in names), labels=labels)


def test_eight_members_use_one_empty_node_rather_than_two_half_full_ones() -> None:
    """Two nodes with four free GPUs each and an empty one: one node is fewer than two."""
    half = {"x": [0, 1, 2, 3]}
    seen = view(
        *(record(name, H100, held=half, pods=[occupant("x", 4)]) for name in ("a", "b")), record("c", H100, held={})
    )

    found = _planned(crew(8), seen)

    assert _nodes(found) == {"c": 8}
    assert found.gbps == 900.0
    assert found.exact
    assert [(seat.name, seat.rank, seat.gpus) for seat in found.seats] == [
        (f"w-{at}", at, ((WHOLE, 1),)) for at in range(8)
    ]
    assert _nodes(_planned(crew(4), seen)) in ({"a": 4}, {"b": 4})  # the empty node stays empty


def test_sixteen_members_do_not_fit_where_fifteen_do() -> None:
    seen = view(record("a", H100, held={}), record("b", H100, held={"x": [3]}, pods=[occupant("x", 1)]))

    found = _unplaced(crew(16), seen)

    assert found.reason == "15 of 16 members fit at once"
    assert found.missing == (("w-15", Reason.TOO_FEW_GPUS),)
    assert found.best == 15


def test_expected_gpus_are_given_where_they_are_certain() -> None:
    """Alone on a node, with all of its free GPUs."""
    seen = view(record("a", H100, held={"x": [0, 1]}, pods=[occupant("x", 2)]), record("b", H100, held={}))

    found = _planned([member("w-0", 6), member("w-1", 8)], seen)

    assert {(seat.node, seat.expected) for seat in found.seats} == {
        ("a", (2, 3, 4, 5, 6, 7)),
        ("b", (0, 1, 2, 3, 4, 5, 6, 7)),
    }
    assert _planned([member("w-0", 2)], seen).seats[0].expected == ()


def test_the_narrowest_domain_is_preferred_to_fewer_nodes() -> None:
    """Four halves in one clique are nearer than two whole nodes in two."""
    half = {"x": [0, 1, 2, 3]}
    halves = [record(f"h{at}", H100, held=half, pods=[occupant("x", 4)]) for at in range(4)]
    wholes = [record(f"w{at}", H100, held={}) for at in range(2)]
    labels = {f"h{at}": {CLIQUE: "c.1"} for at in range(4)} | {f"w{at}": {CLIQUE: f"d.{at}"} for at in range(2)}
    members = crew(4, 4)

    assert _nodes(_planned(members, view(*halves, *wholes))) == {"w0": 2, "w1": 2}
    found = _planned(members, view(*halves, *wholes, labels=labels))
    assert (_nodes(found), found.domain) == ({f"h{at}": 1 for at in range(4)}, "clique=c.1")


def test_of_equal_domains_the_one_with_less_capacity_is_chosen() -> None:
    labels = {name: {RACK: name[0]} for name in ("a0", "a1", "a2", "b0", "b1")}

    found = _planned(crew(2, 8), _empty("a0", "a1", "a2", "b0", "b1", **labels))

    assert (_nodes(found), found.domain) == ({"b0": 1, "b1": 1}, "rack=b")


def test_a_required_level_is_not_widened() -> None:
    labels = {"a": {RACK: "r1", BLOCK: "b"}, "b": {RACK: "r2", BLOCK: "b"}, "c": {}}
    seen = _empty("a", "b", "c", **labels)

    found = _unplaced(crew(2, 8, required="rack"), seen)

    assert found.reason == "1 of 2 members fits at once in one rack"
    assert found.missing == (("w-1", "fits on other nodes, but not in the same rack"),)
    wide = _planned(crew(2, 8, required="block"), seen)
    assert (_nodes(wide), wide.domain) == ({"a": 1, "b": 1}, "block=b")
    assert _unplaced(crew(1, 8, required="zone"), seen).best == 0


def test_racks_of_one_name_in_two_blocks_are_two_racks() -> None:
    seen = _empty("a", "b", a={RACK: "r1", BLOCK: "b1"}, b={RACK: "r1", BLOCK: "b2"})

    assert _unplaced(crew(2, 8, required="rack"), seen).best == 1
    assert _planned(crew(2, 8), seen).domain is None


def test_any_label_is_a_level() -> None:
    labels = {"a": {"example.com/pod": "1"}, "b": {"example.com/pod": "2"}, "c": {"example.com/pod": "2"}}
    seen = _empty("a", "b", "c", **labels)

    assert _planned(crew(2, 8, required="example.com/pod"), seen).domain == "example.com/pod=2"
    assert _unplaced(crew(3, 8, required="example.com/pod"), seen).best == 2
    assert _nodes(_planned(crew(2, 8, preferred="example.com/pod"), seen)) == {"b": 1, "c": 1}
    assert _planned(crew(3, 8, preferred="example.com/pod"), seen).domain is None


def test_a_launcher_without_gpus_has_a_seat_without_a_node() -> None:
    members = [member("launcher", 0), *crew(2, 8)]

    found = _planned(members, _empty("a", "b"))

    assert found.seats[-1] == PlannedMember("uid-launcher", "launcher")
    assert _nodes(found) == {"a": 1, "b": 1}
    assert _planned([member("launcher", 0)], _empty("a")).seats == (PlannedMember("uid-launcher", "launcher"),)
    assert _unplaced([member("launcher", 0), *crew(3, 8)], _empty("a", "b")).best == 3


def test_members_that_fit_start_if_they_reach_the_minimum() -> None:
    seen = _empty("a", "b", "c")

    found = _planned(crew(5, 8, size=5, minimum=2), seen)

    assert _nodes(found) == {"a": 1, "b": 1, "c": 1}
    assert [seat.name for seat in found.seats] == ["w-0", "w-1", "w-2"]
    assert _unplaced(crew(5, 8, size=5, minimum=4), seen).reason == "3 of 4 members fit at once"
    assert _nodes(_planned(crew(5, 8, size=5), seen, minimum=3)) == {"a": 1, "b": 1, "c": 1}


def test_more_members_are_preferred_to_a_narrower_domain() -> None:
    labels = {"a": {RACK: "r1"}, "b": {RACK: "r1"}, "c": {RACK: "r2"}}

    found = _planned(crew(3, 8, size=3, minimum=2), _empty("a", "b", "c", **labels))

    assert (_nodes(found), found.domain) == ({"a": 1, "b": 1, "c": 1}, None)


def test_a_replacement_goes_to_its_siblings() -> None:
    """Its old rank is free, and its rack has capacity; another rack has more."""
    labels = {"a0": {RACK: "a"}, "a1": {RACK: "a"}, "b0": {RACK: "b"}, "b1": {RACK: "b"}}
    siblings = (PlannedMember("s0", "w-0", "a0", rank=0), PlannedMember("s2", "w-2", "a0", rank=2))
    taken = [occupant("w-0", 4)._replace(uid="s0"), occupant("w-2", 4)._replace(uid="s2")]
    seen = view(
        record("a0", H100, held={"w-0": [0, 1, 2, 3], "w-2": [4, 5, 6, 7]}, pods=taken),
        *(record(name, H100, held={}) for name in ("a1", "b0", "b1")),
        labels=labels,
    )

    found = _planned([member("w-1", 4, size=3)], seen, placed=siblings)

    assert [(seat.node, seat.rank) for seat in found.seats] == [("a1", 1)]
    assert found.domain == "rack=a"
    assert _nodes(_planned([member("w-1", 4, size=3, required="rack")], seen, placed=siblings)) == {"a1": 1}


def test_placed_siblings_decide_the_required_domain() -> None:
    labels = {"a": {RACK: "a"}, "b": {RACK: "b"}, "c": {}}
    seen = _empty("a", "b", "c", **labels)
    one = member("w-9", 8, required="rack")

    assert _nodes(_planned([one], seen, placed=(PlannedMember("s0", "w-0", "b"),))) == {"b": 1}
    assert _unplaced([one], seen, placed=(PlannedMember("s0", "w-0", "a"), PlannedMember("s1", "w-1", "b"))).best == 0
    assert _unplaced([one], seen, placed=(PlannedMember("s0", "w-0", "c"),)).best == 0
    assert _nodes(_planned([one], seen, placed=(PlannedMember("s0", "w-0", "gone"),))) in ({"a": 1}, {"b": 1})


def test_a_sibling_s_node_does_not_count_as_one_more() -> None:
    """Two more members of four GPUs: beside the sibling and on one other node, not both on the empty one."""
    seen = view(
        record("a", H100, held={"w-0": [0, 1, 2, 3]}, pods=[occupant("w-0", 4)]),
        record("b", H100, held={"x": [0, 1, 2, 3]}, pods=[occupant("x", 4)]),
        record("c", H100, held={}),
    )

    found = _planned(crew(1, 4, size=2), seen, placed=(PlannedMember("uid-w-0", "w-0", "a"),))

    assert _nodes(found) == {"a": 1}


def test_training_prefers_the_gpu_model_of_its_siblings() -> None:
    """Everything else is equal."""
    running = occupant("w-0", 8, workload="training")
    seen = view(
        record("a", MACHINES["hgx_b200"](), held={"w-0": range(8)}, pods=[running]),
        record("b", H100, held={}),
        record("c", MACHINES["hgx_b200"](), held={}),
    )
    late = member("w-1", 8, size=2, workload="training")

    assert _nodes(_planned([late], seen, placed=(PlannedMember(running.uid, "w-0", "a"),))) == {"c": 1}


def test_kube_schedulers_own_filters_count() -> None:
    taints = {"a": [Taint("dedicated", "other", "NoSchedule")]}
    labels = {"b": {"pool": "gpu"}, "c": {"pool": "cpu"}}
    seen = view(*(record(name, H100, held={}) for name in ("a", "b", "c")), labels=labels, taints=taints)
    picky = crew(2, 8, rules=selecting(pool="gpu"))

    assert _nodes(_planned(picky[:1], seen)) == {"b": 1}
    members = [picky[0], *crew(3, 8)[1:]]
    assert _nodes(_planned(members[:2], seen)) == {"b": 1, "c": 1}
    assert _unplaced(members, seen).missing == (("w-0", "the node has no label pool=gpu, as nodeSelector requires"),)


def test_the_diagnosis_ignores_nodes_of_other_members() -> None:
    """The node of the single member has capacity, but not for these members."""
    labels = {"b": {"pool": "gpu"}, "c": {"pool": "gpu"}}
    seen = view(*(record(name, RTX if name == "b" else H100, held={}) for name in ("a", "b")), labels=labels)
    picky = [member(f"p-{at}", 3, rules=selecting(pool="gpu")) for at in range(3)]

    found = _unplaced([member("x", 4), *picky], seen)

    assert found.best == 3
    assert found.missing == (("p-2", "the node has no label pool=gpu, as nodeSelector requires"),)


def test_a_rack_for_either_kind_but_not_both_is_skipped() -> None:
    labels = {"a": {RACK: "r1"}, "b": {RACK: "r2"}, "c": {RACK: "r2"}}

    found = _planned([member("w-0", 8), member("x-0", 1)], _empty("a", "b", "c", **labels))

    assert found.domain == "rack=r2"


def test_nodes_to_avoid_and_nodes_without_rules_are_not_used() -> None:
    seen = _empty("a", "b")

    assert _nodes(_planned(crew(1, 8), seen, avoid=frozenset({"a"}))) == {"b": 1}
    assert _unplaced(crew(1, 8), seen, avoid=frozenset({"a", "b"})).missing == (("w-0", AVOIDED_REASON),)
    assert _unplaced(crew(1, 8), seen._replace(rules={})).missing == (("w-0", NO_NODE_REASON),)


@pytest.mark.parametrize(
    ("allocatable", "others", "reason"),
    [
        pytest.param({"cpu_milli": 8000}, NodeLoad(5000, pods=1), "Insufficient cpu", id="CPU"),
        pytest.param({"memory": 8 << 30}, NodeLoad(0, 5 << 30, pods=1), "Insufficient memory", id="memory"),
        pytest.param({"storage": 8 << 30}, NodeLoad(0, 0, 5 << 30, 1), "Insufficient ephemeral-storage", id="storage"),
        pytest.param({"max_pods": 110}, NodeLoad(pods=110), "Too many pods", id="pod slots"),
    ],
)
def test_nodes_full_of_pods_without_gpus_are_not_used(
    allocatable: dict[str, int], others: NodeLoad, reason: str
) -> None:
    """Not the first node, nor the one with the best score; and the reason says so where there is no other node."""
    pods = [each._replace(load=NodeLoad(4000, 4 << 30, 4 << 30, 1)) for each in crew(2, 8)]
    nodes = [with_allocatable(record(name, H100, held={}), **allocatable) for name in ("a", "b", "c")]

    assert _nodes(_planned(pods, view(*nodes, others={"a": others}))) == {"b": 1, "c": 1}
    assert _unplaced(pods, view(*nodes, others={"a": others, "c": others})).missing == (("w-1", reason),)
    assert SinglePodPlacer().place_pods(pods, view(*nodes, others=dict.fromkeys("ac", others))).missing == (
        ("uid-w-1", reason),
    )


def test_what_is_left_of_a_node_decides_how_many_members_go_there() -> None:
    """GPUs would be enough for eight. Requests are exact, also those of pods that use GPUs."""
    pods = [each._replace(load=NodeLoad(1500, pods=1)) for each in crew(6)]
    there = occupant("x", 1)._replace(load=NodeLoad(500, pods=1))
    nodes = [with_allocatable(record(name, H100, held={}, pods=[there]), cpu_milli=8000) for name in ("a", "b")]

    assert _nodes(_planned(pods, view(*nodes, others={"a": NodeLoad(3000, pods=9)}))) == {"a": 3, "b": 3}
    assert _nodes(_planned(pods[:5], view(*nodes))) == {"a": 5}
    assert _unplaced(pods, view(nodes[0])).missing == (("w-5", "Insufficient cpu"),)


def test_pods_that_request_nothing_fit_on_a_node_without_cpu() -> None:
    nodes = with_allocatable(record("a", H100, held={}), cpu_milli=8000, max_pods=11)

    assert _nodes(_planned(crew(2), view(nodes, others={"a": NodeLoad(9000, pods=9)}))) == {"a": 2}


def test_an_invalid_request_keeps_the_gang_from_being_placed() -> None:
    bad = member("w-1")._replace(request=InvalidRequest("the pod's request is malformed: ..."))

    found = _unplaced([*crew(1), bad], _empty("a"))

    assert (found.reason, found.missing) == (
        "the pod's request is malformed: ...",
        (("w-1", "the pod's request is malformed: ..."),),
    )


def test_a_search_ends_when_its_time_is_over() -> None:
    """Without any time the widest domain is packed greedily."""
    labels = {f"n{at}": {RACK: f"r{at // 2}"} for at in range(8)}
    seen = _empty(*labels, **labels)
    ticks = count()

    hurried = _planned(crew(2, 8), seen, out_of_time=lambda: True)
    stopped = _planned(crew(2, 8), seen, out_of_time=lambda: next(ticks) > 3)

    assert len(_nodes(hurried)) == 2
    assert len(_nodes(stopped)) == 2
    required = _planned(crew(2, 8, required="rack"), seen, out_of_time=lambda: True)
    assert required.domain is not None


def test_a_search_without_steps_still_finds_a_plan() -> None:
    seen = view(*cluster(Random(7), 6))
    members = [*crew(3, 1), member("x-0", 2)]

    found = _planned(members, seen, steps=0)

    assert sum(_nodes(found).values()) == 4
    assert _planned(members, seen).exact


def test_members_with_mutual_anti_affinity_have_a_node_each() -> None:
    found = _planned(crew(3, role="x", refuses="x"), _empty("a", "b", "c"))

    assert (_nodes(found), found.exact) == ({"a": 1, "b": 1, "c": 1}, True)


def test_rejected_members_may_not_join_and_others_may() -> None:
    shy, plain, other = member("w-0", 1, refuses="x"), member("w-1", 1, role="x"), member("w-2", 1, role="y")

    found = _planned([shy, plain, other], _empty("a", "b", "c"))

    seats = {seat.name: seat.node for seat in found.seats}
    assert seats["w-0"] != seats["w-1"]
    assert set(_nodes(found).values()) == {1, 2}


def test_anti_affinity_is_the_reason_where_nothing_else_is() -> None:
    assert _unplaced(crew(3, role="x", refuses="x"), _empty("a", "b")) == Unplaced(
        "2 of 3 members fit at once", (("w-2", ANTI_AFFINITY_REASON),), best=2, steps=2
    )


@pytest.mark.parametrize(
    ("late", "there"),
    [
        pytest.param(member("w-1", role="x", refuses="x"), member("w-0", role="x", refuses="x"), id="both"),
        pytest.param(member("w-1", refuses="x"), member("w-0", role="x"), id="the new pod"),
        pytest.param(member("w-1", role="x"), member("w-0", refuses="x"), id="the placed pod"),
        pytest.param(
            member("w-1", role="x"), member("w-0", refuses="x")._replace(is_terminating=True), id="a terminating pod"
        ),
    ],
)
def test_a_late_member_respects_the_anti_affinity_of_its_siblings(late: Member, there: Member) -> None:
    beside = {"placed": (PlannedMember(there.uid, there.name, "a"),), "placed_members": (PlacedMember("a", there),)}

    assert _nodes(_planned([late], _empty("a", "b"), **beside)) == {"b": 1}
    assert _unplaced([late], _empty("a"), **beside).missing == (("w-1", ANTI_AFFINITY_REASON),)
    assert _nodes(_planned([member("w-1", role="z")], _empty("a", "b"), **beside)) == {"a": 1}


class _Brute:
    """All assignments of a few members to a few nodes."""

    def __init__(self, members: list[Member], seen: NodeView) -> None:
        self.members, self.seen = members, seen
        self._fits: dict[tuple[str, tuple[str, ...]], int | None] = {}
        found = group_members(members, seen, PlanOptions())
        assert isinstance(found, MemberGroups)
        self._kinds = {each.uid: at for at, group in enumerate(found.groups) for each in group.members}

    def best(
        self, racks: bool, used: frozenset[str] = frozenset(), *, one_product: bool = False
    ) -> tuple[int, int, int]:
        """Return members, negative; unused nodes; points, negative. ``racks``: all members in one rack."""
        names = ["", *self.seen.table.records]
        found = [(0, 0, 0)]
        for assignment in ways(self.members, names):
            assignment.pop("", None)
            if racks and len({self.rack(name) for name in assignment}) > 1:
                continue
            if racks and None in {self.rack(name) for name in assignment}:
                continue
            products = {product_of(self.seen.table.states[name]) for name in (*assignment, *used)}
            if one_product and (len(products) > 1 or None in products):
                continue
            points = [self.points(name, load) for name, load in assignment.items()]
            if None not in points:
                found.append(
                    (
                        -sum(map(len, assignment.values())),
                        len(assignment.keys() - used),
                        -sum(each or 0 for each in points),
                    )
                )
        return min(found)

    def rack(self, name: str) -> str | None:
        return (self.seen.rules[name].metadata.labels or {}).get(RACK)

    def points(self, name: str, load: list[Member]) -> int | None:
        key = name, tuple(each.uid for each in load)
        if key not in self._fits:
            self._fits[key] = self._points(name, load)
        return self._fits[key]

    def _points(self, name: str, load: list[Member]) -> int | None:
        """Return the points; None: the members do not fit."""
        table = self.seen.table
        record = table.records[name]
        free = free_resources(record, self.seen.others.get(name, NO_LOAD))
        if not stands(table, name, load) or free.shortage(reduce(NodeLoad.plus, (each.load for each in load), NO_LOAD)):
            return None
        if quarrel(load) or not self.spares(name, load):
            return None
        total, there = 0, record.pods
        for each in sorted(load, key=lambda each: self._kinds[each.uid]):
            profile = asked(each).profile._replace(has_peers=len(self.members) > 1)
            score = evaluate_state(profile, state_if(table, name, there), POLICY)
            assert isinstance(score, Score)
            total += round(score.points * 1_000_000)
            there = (*there, *occupants([each]))
        return total

    def spares(self, name: str, load: list[Member]) -> bool:
        """Return whether required shapes of other pods on their way there hold too."""
        table = self.seen.table
        pods = table.records[name].pods
        waiting = [pod for pod in pods if pod.profile.requires_shape and pod.name == "late"]
        return not load or all(
            isinstance(
                evaluate_state(
                    pod.profile, state_if(table, name, (*(o for o in pods if o != pod), *occupants(load))), POLICY
                ),
                Score,
            )
            for pod in waiting
        )


def _small(random: Random) -> tuple[list[Member], NodeView]:
    records = cluster(random, 3)
    labels = {each.name: {RACK: random.choice("xy")} if random.random() < 0.8 else {} for each in records}
    kinds = [(random.choice((1, 1, 2, 3)), random.choice(WISHES)) for _ in range(2)]
    required = random.choice((None, None, "rack"))
    number = random.randint(1, 4)
    minimum = random.choice((None, random.randint(1, number)))
    members = []
    calm, refuses = random.random() < 0.5, random.choice((("x",), ("", "x"), ("", "x", "y", "xy")))
    for at in range(number):
        gpus, wishes = random.choice(kinds)
        one = member(f"m-{at}", gpus, size=number, minimum=minimum, required=required, **wishes)
        role, refused = random.choice("xy"), random.choice(refuses)
        members.append(one if calm else one._replace(labels={"role": role}, anti_affinity=refusing(refused)))
    load = random_load(random)
    members = [each._replace(load=load if calm else random_load(random)) for each in members]
    others = random_others(random, [each.name for each in records])
    return members, view(*records, labels=labels, others=others)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_plans_equal_the_best_of_all_assignments(seed: int) -> None:
    """Found if one exists, valid, in the narrowest domain, on the fewest nodes, with most points."""
    members, seen = _small(Random(seed))
    brute = _Brute(members, seen)
    wanted = members[0].gang_request
    levels = [True] if wanted.required else [True, False]
    rungs = [brute.best(racks=racks, one_product=same) for same in (True, False) for racks in levels]
    best = min(rungs, key=lambda each: (each[0], rungs.index(each)))

    found = plan_gang(members, seen)

    if -best[0] < (wanted.minimum or len(members)):
        assert isinstance(found, Unplaced)
        assert found.best == -best[0]
        assert len(found.missing) == len(members) - found.best
        return
    assert isinstance(found, GangPlan)
    assert found.exact
    placed = by_node(found.seats, members)
    points = [brute.points(name, load) for name, load in placed.items()]
    assert (-len(found.seats), len(placed), -sum(each or 0 for each in points)) == best
    assert None not in points
    assert all(stands(seen.table, name, load) for name, load in placed.items())


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_later_members_are_placed_as_well_as_possible(seed: int, late: bool) -> None:
    """Nodes of siblings do not count. Without time the plan is still valid, if not the best."""
    random = Random(seed)
    seen = view(*cluster(random, 3))
    kinds = random.sample((1, 2, 3), random.choice((1, 2)))
    members = [member(f"m-{at}", random.choice(kinds)) for at in range(random.randint(1, 4))]
    used = frozenset(random.sample(list(seen.table.records), random.randint(1, 2)))
    siblings = tuple(PlannedMember(f"s-{name}", f"s-{name}", name) for name in used)
    brute = _Brute(members, seen)
    anywhere, uniform = (brute.best(racks=False, used=used, one_product=same) for same in (False, True))
    best = uniform if uniform[0] == anywhere[0] else anywhere  # one product, but never at the cost of a member

    found = plan_gang(members, seen, PlanOptions(placed=siblings, minimum=1 + len(used), out_of_time=lambda: late))

    if isinstance(found, Unplaced):
        assert (found.best, late or best[0] == 0) == (0, True)
        return
    placed = by_node(found.seats, members)
    points = [brute.points(name, load) for name, load in placed.items()]
    rank = (-len(found.seats), len(placed.keys() - used), -sum(each or 0 for each in points))
    assert None not in points
    assert rank >= best if late else rank == best


@given(st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_the_order_of_members_and_nodes_makes_no_difference(seed: int) -> None:
    random = Random(seed)
    members, seen = _small(random)
    others = list(seen.table.records.values())
    random.shuffle(others)
    labels = {name: rules.metadata.labels or {} for name, rules in seen.rules.items()}
    shuffled = random.sample(members, len(members))

    one, other = plan_gang(members, seen), plan_gang(shuffled, view(*others, labels=labels, others=seen.others))

    if isinstance(one, GangPlan):
        assert one == other
    else:
        assert isinstance(other, Unplaced)
        assert (one.reason, one.missing, one.best) == (other.reason, other.missing, other.best)


@given(st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_a_search_cut_short_gives_a_valid_plan(seed: int) -> None:
    random = Random(seed)
    seen = view(*cluster(random, 6))
    members = [member(f"m-{at}", random.choice((1, 2)), **random.choice(WISHES)) for at in range(random.randint(1, 7))]

    found = plan_gang(members, seen, PlanOptions(steps=random.choice((0, 50))))

    if isinstance(found, GangPlan):
        assert len(found.seats) == len(members)
        assert all(stands(seen.table, name, load) for name, load in by_node(found.seats, members).items())


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_a_large_gang_of_one_kind_uses_the_fewest_nodes(gpus: int) -> None:
    """Even where the search is greedy."""
    random = Random(gpus)
    records = []
    for at in range(40):
        busy = random.sample(range(8), random.randint(0, 8))
        records.append(record(f"n{at}", H100, held={"x": busy}, pods=[occupant("x", len(busy))] if busy else []))
    free = sorted(((8 - each.pods[0].profile.gpus if each.pods else 8) // gpus for each in records), reverse=True)
    wanted = sum(free) * 2 // 3
    fewest = next(at for at in range(41) if sum(free[:at]) >= wanted)

    found = _planned(crew(wanted, gpus), view(*records), steps=100)

    assert len(_nodes(found)) == fewest


def test_many_different_selectors_do_not_exceed_the_time_of_a_plan() -> None:
    """Nodes x members x selectors are too many to compare: the plan ends with what was examined."""
    looked_up = count()

    class CountedLabels(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            next(looked_up)
            return super().get(key, default)

    seen = view(*(record(f"n-{at}", RTX) for at in range(300)))
    rules = {
        name: FullNode(metadata=Metadata(name=name, labels=CountedLabels()), spec=node.spec)
        for name, node in seen.rules.items()
    }
    members = [member(f"w-{at}", rules=selecting(**{f"key-{at}": "x"})) for at in range(60)]

    found = _unplaced(members, seen._replace(rules=rules), out_of_time=lambda: True)

    assert len(found.missing) == 60
    assert found.missing[-1][1] == OUT_OF_TIME_REASON
    assert next(looked_up) < 10_000  # of 18,000 and more


def test_the_reason_names_what_a_busy_node_lacks_even_when_it_is_empty() -> None:
    busy = [record(name, RTX, held={f"x-{name}": [0, 1, 2, 3, 4, 5]}, pods=[occupant(f"x-{name}", 6)]) for name in "ab"]

    found = _unplaced([member("w-0", 4, interconnect="nvlink")], view(*busy))

    assert found.missing == (("w-0", Reason.INTERCONNECT),)
    assert _unplaced([member("w-0", 4)], view(*busy)).missing == (("w-0", Reason.TOO_FEW_GPUS),)
