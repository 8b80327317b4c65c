"""Decisions: the chosen nodes, the reasons of the others, and the properties of every decision."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.evaluation.evaluate import Decision, Evaluator, evaluate, evaluate_state, shortlist
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record, request, with_pods

POLICY = Policy()
H100, PAIRS = MACHINES["hgx_h100"](), MACHINES["a100_bridged"]()


def _table(*records: NodeRecord) -> ClusterSnapshot:
    return snapshot_of(records, NOW, POLICY)


def _labelled(name: str, product: str, numa: str) -> NodeRecord:
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.numa": numa}
    return record(name, labels=labels, allocatable={"nvidia.com/gpu": 1})


def test_classic_walk_through() -> None:
    """Three nodes labelled by hand, no agent: the A100 on NUMA node 0 wins, the V100 is rejected."""
    table = _table(
        _labelled("node-1", "NVIDIA-A100-SXM4-80GB", "0"),
        _labelled("node-2", "NVIDIA-A100-SXM4-80GB", "1"),
        _labelled("node-3", "Tesla-V100-SXM2-16GB", "0"),
    )

    found = evaluate(request(1, model="NVIDIA-A100-SXM4-80GB"), table, ["node-1", "node-2", "node-3"], POLICY)

    assert found.nodes == ("node-1",)  # the other node is further below the best than the policy tolerates
    assert found.rejected == {"node-3": Reason.MODEL}
    # Weights 3 (leftover) + 1 + 1 + 1. The one GPU is a fragment for the half of pods that want more: 0.5 cease to be.
    # 1 / (1 + e^-1) = 0.72. (3 x 0.72 + 1 x 1 + 0 + 1) / 6 = 0.69, and without NUMA node 0 3.16 / 6 = 0.53.
    assert {name: each.rounded for name, each in found.scores.items()} == {"node-1": 7, "node-2": 5}


def test_unknown_nodes_are_rejected_with_their_own_reason() -> None:
    found = evaluate(request(1), _table(record("a", H100, held={})), ["a", "ghost"], POLICY)

    assert (found.nodes, found.rejected) == (("a",), {"ghost": Reason.UNKNOWN_NODE})


def test_node_with_split_gpus_is_rejected_and_the_whole_island_chosen() -> None:
    """One node has two and two free GPUs, the other four in one island."""
    quads = MACHINES["dgx1"]()
    split = record("split", quads, held={"x": [0, 1, 4, 5]}, pods=[occupant("x", 4)])
    pairs = record("pairs", PAIRS, held={})
    whole = record("whole", H100, held={"y": [0, 1, 2, 3]}, pods=[occupant("y", 4)])
    asked = request(4, island="required", interconnect="nvswitch")

    found = evaluate(asked, _table(split, pairs, whole), ["split", "pairs", "whole"], POLICY)

    assert found.nodes == ("whole",)
    assert found.rejected == {"split": Reason.INTERCONNECT, "pairs": Reason.ISLAND}


def test_required_shape_gets_one_node_and_the_next_pod_another() -> None:
    """The next Filter comes before the watch shows the first pod's binding."""
    table = _table(record("a", PAIRS, held={"x": [0, 1]}, pods=[occupant("x", 2)]), record("b", PAIRS, held={}))
    names = ["a", "b"]
    placed: list[tuple[str, Occupant]] = []
    for name in ("p", "q", "r", "s"):
        asked = request(2, name, island="required")
        seen = with_pods(table, placed, NOW, POLICY)
        decision = evaluate(asked, seen, names, POLICY)
        assert decision.single
        placed += [(node, Occupant(asked.uid, "team", name, asked.profile)) for node in decision.nodes]

    assert sorted(node for node, _ in placed) == ["a", "b", "b"]


class TestShortlist:
    """Where many nodes pass, kube-scheduler gets the best of them."""

    TABLE = _table(*(record(f"n{at:03}", H100, held={"x": [0]}, pods=[occupant("x", 1)]) for at in range(100)))
    NAMES = tuple(TABLE.records)

    def _nodes(self, name: str, policy: Policy = Policy(shortlist=5), **wishes: str) -> tuple[str, ...]:  # noqa: B008
        return evaluate(request(1, name, **wishes), self.TABLE, self.NAMES, policy).nodes

    def test_as_many_as_the_policy_allows(self) -> None:
        assert len(self._nodes("p")) == 5
        assert set(self._nodes("p", Policy(shortlist=100))) == set(self.NAMES)

    def test_pods_spread_over_equal_nodes(self) -> None:
        drawn = {node for at in range(40) for node in self._nodes(f"p{at}")}

        assert len(drawn) > 50

    def test_best_nodes_come_first(self) -> None:
        best = record("best", H100, held={"x": range(6)}, pods=[occupant("x", 6)])
        table = _table(*self.TABLE.records.values(), best)

        nodes = evaluate(request(2), table, [*self.NAMES, "best"], Policy(shortlist=3, tolerance=10.0)).nodes

        assert nodes[0] == "best"
        assert len(nodes) == 3

    def test_nodes_far_below_the_best_are_left_out(self) -> None:
        best = record("best", H100, held={"x": range(6)}, pods=[occupant("x", 6)])
        table = _table(*self.TABLE.records.values(), best)

        assert evaluate(request(2), table, [*self.NAMES, "best"], Policy(shortlist=3)).nodes == ("best",)

    def test_pod_with_soft_preferences_gets_all_nodes(self) -> None:
        asked = request(1)._replace(has_soft_preferences=True)

        assert len(evaluate(asked, self.TABLE, self.NAMES, Policy(shortlist=5)).nodes) == 100

    @pytest.mark.parametrize("most", [0, 1, 7, 8, 20, 50, 60], ids=str)
    @pytest.mark.parametrize("size", [1, 50], ids=str)
    def test_no_node_left_out_is_better_than_one_chosen(self, most: int, size: int) -> None:
        points = {f"n{at}": float(at % 7) for at in range(size)}
        ranked = {each: [name for name in points if points[name] == each] for each in set(points.values())}

        chosen = shortlist(ranked, most, "uid")

        assert len(set(chosen)) == len(chosen) == min(most, size)
        assert sorted((points[name] for name in chosen), reverse=True) == sorted(points.values(), reverse=True)[:most]


_MACHINES = ("hgx_h100", "a100_bridged", "dgx1", "rtx4090", "cloud_vm", "mixed", "nvlink_unknown", "a100_mig")


@st.composite
def tables(draw: st.DrawFn) -> ClusterSnapshot:
    """A dozen nodes of several kinds, partly busy, some with pods whose GPUs are not reported."""
    records = []
    for at in range(draw(st.integers(1, 12))):
        topology = MACHINES[draw(st.sampled_from(_MACHINES))]()
        busy = draw(st.lists(st.sampled_from([gpu.index for gpu in topology.gpus]), unique=True, max_size=3))
        pods = [occupant("busy", len(busy))] if busy else []
        pods += [
            occupant(f"late-{each}", draw(st.integers(1, 2)), island="required")
            for each in range(draw(st.integers(0, 2)))
        ]
        records.append(record(f"n{at}", topology, held={"busy": busy}, pods=pods))
    return _table(*records)


_REQUESTS = st.builds(
    lambda gpus, wishes: request(gpus, **wishes),
    st.integers(1, 4),
    st.sampled_from(({}, {"island": "required"}, {"numa": "required"}, {"min_bandwidth": "300"}, {"min_vram": "40Gi"})),
)


@settings(deadline=None, max_examples=80)
@given(tables(), _REQUESTS, st.data())
def test_decision_does_not_depend_on_the_order_of_names_nor_changes_anything(
    table: ClusterSnapshot, asked: PodRequest, data: st.DataObject
) -> None:
    names = [*table.records, "ghost"]
    before = msgspec.json.encode(dict(table.records))
    first = evaluate(asked, table, names, Policy(shortlist=2))

    again = evaluate(asked, table, data.draw(st.permutations(names)), Policy(shortlist=2))

    assert msgspec.json.encode(dict(table.records)) == before
    assert again == first
    assert set(first.rejected) | set(first.scores) == set(names)
    assert not set(first.rejected) & set(first.scores)
    assert set(first.nodes) <= set(first.scores)


@settings(deadline=None, max_examples=60)
@given(tables(), _REQUESTS)
def test_decision_can_be_recomputed_from_its_recorded_inputs(table: ClusterSnapshot, asked: PodRequest) -> None:
    names = list(table.records)
    recorded = msgspec.json.encode((asked, POLICY, list(table.records.values()), names, NOW, table.generation))

    kind = tuple[PodRequest, Policy, list[NodeRecord], list[str], float, int]
    again, policy, records, same_names, now, generation = msgspec.json.decode(recorded, type=kind)
    recomputed = evaluate(again, snapshot_of(records, now, policy, generation), same_names, policy)

    assert recomputed == evaluate(asked, table, names, POLICY)


def test_decision_for_a_subset_agrees_with_that_for_all() -> None:
    """kube-scheduler calls Filter for a nominated node alone."""
    table = _table(*(record(f"n{at}", PAIRS, held={"x": [0] * at}, pods=[]) for at in range(2)))
    both: Decision = evaluate(request(2), table, ["n0", "n1"], POLICY)

    for name in ("n0", "n1"):
        alone = evaluate(request(2), table, [name], POLICY)
        assert alone.scores[name] == both.scores[name]


def test_cache_of_evaluations_is_bounded() -> None:
    states = _table(record("a", H100, held={}), record("b", PAIRS, held={})).states.values()
    asked = request(1).profile
    judged = Evaluator(asked, POLICY, max_states=1)

    assert [judged(state) for state in states] == [evaluate_state(asked, state, POLICY) for state in states]
    assert len(judged) == 1
