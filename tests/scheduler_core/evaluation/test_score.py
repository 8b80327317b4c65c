"""Scores, with their arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gputopo.model import NodeTopology
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.score import RAW_SCORES, FactorScore, Score, score_state, scoring_key
from scheduler_core.policy.factors import Weights
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.pod_request import PodProfile
from tests.machines import MACHINES
from tests.property.strategies import topologies
from tests.scheduler_core.builders import NOW, occupant, profile, record

POLICY = Policy()


def _node(machine: str, *busy: int) -> NodeState:
    pods = [occupant("busy", len(busy))] if busy else []
    return state_of(record(topology=MACHINES[machine](), held={"busy": busy}, pods=pods), NOW, POLICY)


def _labelled(**labels: str) -> NodeState:
    keys = {
        f"nvidia.com/{key.replace('_', '.').replace('topology', 'gpu-topology')}": value
        for key, value in labels.items()
    }
    return state_of(record(labels=keys, allocatable={"nvidia.com/gpu": 4}), NOW, POLICY)


def _raw(factor: str, node: NodeState, asked: PodProfile, policy: Policy = POLICY) -> float:
    return RAW_SCORES[factor](asked, node, policy)


def test_score_parts() -> None:
    """Four GPUs of an idle HGX H100. Weights 4 + 3 + 1 + 1 + 1 = 10, so a share is weight x raw.

    The device plugin takes one socket's four: 900 / (900 + 300) = 0.75. The 4 that are left are fragments for the 15 %
    of pods that want 8, which is 0.6 GPUs: 1 / (1 + e^1.2) = 0.231, in steps of 0.04: 0.2. One NUMA node; a NIC
    at PXB or so beside each.
    """
    node = _node("hgx_h100")
    assert node.shape is not None
    assert node.shape.nic_nearness is not None
    nic = node.shape.nic_nearness[0]

    assert score_state(profile(4), node, POLICY) == Score(
        points=round(3.0 + 0.6 + 1.0 + nic + 1.0, 6),
        parts=(
            FactorScore("bandwidth", 0.75, 4.0, 3.0),
            FactorScore("leftover", 0.2, 3.0, 0.6),
            FactorScore("numa", 1.0, 1.0, 1.0),
            FactorScore("nic", nic, 1.0, nic),
            FactorScore("health", 1.0, 1.0, 1.0),
        ),
    )


@pytest.mark.parametrize(
    ("points", "rounded"), [(0.0, 0), (0.49, 0), (0.5, 1), (9.49, 9), (9.5, 10), (10.0, 10)], ids=str
)
def test_rounded(points: float, rounded: int) -> None:
    assert Score(points, ()).rounded == rounded


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        pytest.param(profile(4), (4, 3, 1, 1, 1), id="nothing said"),
        pytest.param(profile(4, island="preferred"), (8, 3, 1, 1, 1), id="island preferred: twice"),
        pytest.param(profile(4, island="required"), (8, 3, 1, 1, 1), id="island required: twice"),
        pytest.param(profile(4, island="ignore"), (3, 1, 1, 1), id="island ignored"),
        pytest.param(profile(4, numa="preferred"), (4, 3, 3, 1, 1), id="NUMA preferred: three times"),
        pytest.param(profile(4, numa="ignore"), (4, 3, 1, 1), id="NUMA ignored"),
        pytest.param(profile(1), (3, 1, 1, 1), id="one GPU has no ring"),
    ],
)
def test_weights_follow_constraints(asked: PodProfile, weights: tuple[float, ...]) -> None:
    assert tuple(part.weight for part in score_state(asked, _node("hgx_h100"), POLICY).parts) == weights


def test_policy_without_weights_scores_all_nodes_alike() -> None:
    assert score_state(profile(4), _node("hgx_h100"), Policy(weights=Weights(0, 0, 0, 0, 0))) == Score(0, ())


@pytest.mark.parametrize(
    ("node", "asked", "raw"),
    [
        pytest.param(_node("hgx_b200"), profile(8), 1800 / 2100, id="NVLink 5: 1800 / (1800 + 300)"),
        pytest.param(_node("a100_mesh"), profile(4), 200 / 500, id="mesh: hops of 4 x 50"),
        # The plugin takes a quad; its ring has hops of one link.
        pytest.param(_node("dgx1"), profile(4), 50 / 350, id="cube mesh: hops of 50"),
        pytest.param(_node("a100_bridged", 0), profile(2), 600 / 900, id="the pair that is whole"),
        pytest.param(_node("a100_bridged", 0, 2), profile(2), 0.02, id="across the sockets: SYS"),
        pytest.param(_node("cloud_vm"), profile(2), 0.2, id="NVSwitch of unknown speed"),
        pytest.param(_node("nvlink_unknown"), profile(2), 0.0, id="nobody knows"),
        pytest.param(_labelled(topology="nvlink"), profile(2), 0.15, id="a label says NVLink"),
        pytest.param(_labelled(topology="nvswitch"), profile(2), 0.2, id="a label says NVSwitch"),
        pytest.param(_labelled(topology="pcie"), profile(2), 0.0, id="a label says PCIe"),
        pytest.param(_labelled(), profile(2), 0.0, id="no label"),
        pytest.param(state_of(record(), NOW, POLICY), profile(2), 0.0, id="nothing at all"),
    ],
)
def test_bandwidth(node: NodeState, asked: PodProfile, raw: float) -> None:
    assert _raw("bandwidth", node, asked) == pytest.approx(raw)


def test_pcie_of_unknown_distance_scores_zero() -> None:
    bare = NodeTopology(gpus=MACHINES["rtx4090"]().gpus, nvlink=MACHINES["rtx4090"]().nvlink)
    node = state_of(record(topology=bare, held={}), NOW, POLICY)

    assert _raw("bandwidth", node, profile(2)) == 0.0


def test_interconnect_label_is_used_for_a_node_without_a_shape() -> None:
    node = state_of(record(topology=MACHINES["h100_partial"](), allocatable={"nvidia.com/gpu": 8}), NOW, POLICY)

    assert _raw("bandwidth", node, profile(2)) == 0.2


@pytest.mark.parametrize(
    ("node", "asked", "raw"),
    [
        # Of pods 50 % want one GPU, 20 % two, 15 % four, 15 % eight. 7 are fragments for 15 %: 1.05, 1 / (1 + e^2.1).
        pytest.param(_node("hgx_h100"), profile(1), 0.08, id="one breaks into eight: 0.109"),
        # It was a fragment for half of the pods, and is gone: 1 / (1 + e^-1).
        pytest.param(_node("hgx_h100", 0, 1, 2, 3, 4, 5, 6), profile(1), 0.72, id="the last one: 0.731"),
        # Before, for four by islands all 4 and by the node none: 0.3; for eight 0.6. After 0.3 + 0.3. Gain 0.3.
        pytest.param(_node("a100_bridged"), profile(2), 0.64, id="a whole pair of two: 0.646"),
        # Before 1.0. If it takes the single one 0.6, if it breaks the pair (2 of 3) 0.8. Gain 0.267 on average.
        pytest.param(_node("a100_bridged", 0), profile(1), 0.6, id="it may break the pair that is whole: 0.630"),
        # 6 are fragments for 15 %: 0.9.
        pytest.param(_node("rtx4090"), profile(2), 0.12, id="no islands: the node counts: 0.142"),
        pytest.param(_node("nvlink_unknown"), profile(2), 0.12, id="islands unknown: the node counts as one: 0.142"),
        pytest.param(state_of(record(), NOW, POLICY), profile(1), 0.0, id="nothing known"),
    ],
)
def test_leftover(node: NodeState, asked: PodProfile, raw: float) -> None:
    assert _raw("leftover", node, asked) == pytest.approx(raw)


@pytest.mark.parametrize(
    ("node", "asked", "policy", "raw"),
    [
        pytest.param(_node("hgx_h100"), profile(4), POLICY, 1.0, id="one node"),
        pytest.param(_node("hgx_h100"), profile(8), POLICY, 0.5, id="both nodes: 1 / 2"),
        pytest.param(_node("hgx_h100", 0, 1, 2, 3), profile(1), POLICY, 1.0, id="node 1 is as good where all is known"),
        pytest.param(_node("cloud_vm"), profile(1), POLICY, 0.0, id="unknown"),
        pytest.param(_labelled(gpu_numa="0"), profile(1), POLICY, 1.0, id="classic rule: node 0"),
        pytest.param(_labelled(gpu_numa="1"), profile(1), POLICY, 0.0, id="classic rule: node 1"),
        pytest.param(
            _labelled(gpu_numa="1"), profile(2, numa="preferred"), POLICY, 1.0, id="the pod says what it wants"
        ),
        pytest.param(_labelled(gpu_numa="0_1"), profile(1), POLICY, 0.0, id="several nodes, which is not said"),
        pytest.param(_labelled(gpu_numa="1"), profile(1), Policy(prefer_numa_zero=False), 1.0, id="rule off"),
        pytest.param(state_of(record(), NOW, POLICY), profile(1), POLICY, 0.0, id="nothing known"),
    ],
)
def test_numa(node: NodeState, asked: PodProfile, policy: Policy, raw: float) -> None:
    assert _raw("numa", node, asked, policy) == raw


@pytest.mark.parametrize(
    ("node", "asked", "raw"),
    [
        # One NIC, behind GPU 3's host bridge: PHB 0.6; NODE 0.4 on its socket, SYS 0.2 on the other.
        pytest.param(_node("rtx4090"), profile(8), (0.6 + 3 * 0.4 + 4 * 0.2) / 8, id="mean"),
        pytest.param(_node("rtx4090"), profile(1), 0.2, id="the farthest may come"),
        pytest.param(_node("a100_bridged"), profile(2), 0.0, id="no NIC"),
        pytest.param(state_of(record(), NOW, POLICY), profile(1), 0.0, id="nothing known"),
    ],
)
def test_nic(node: NodeState, asked: PodProfile, raw: float) -> None:
    assert _raw("nic", node, asked) == pytest.approx(raw)


def test_nic_of_sets_that_are_too_many_to_list_is_that_of_the_worst() -> None:
    """Any six of sixteen, none nearer to its NIC than the worst six."""
    node = _node("dgx2")
    assert node.shape is not None
    assert node.shape.nic_nearness is not None

    assert _raw("nic", node, profile(6)) == pytest.approx(sum(sorted(node.shape.nic_nearness)[:6]) / 6)


@pytest.mark.parametrize(
    ("node", "policy", "raw"),
    [
        pytest.param(_node("hgx_h100"), POLICY, 1.0, id="well"),
        pytest.param(_node("h100_weak_uplink"), POLICY, 0.0, id="a degraded GPU may come"),
        pytest.param(_node("h100_weak_uplink", 3), POLICY, 1.0, id="it is busy"),
        pytest.param(_node("h100_weak_uplink"), Policy(degraded=Handling.IGNORE), 1.0, id="policy ignores it"),
    ],
)
def test_health(node: NodeState, policy: Policy, raw: float) -> None:
    assert _raw("health", node, profile(1), policy) == raw


def test_stale_node_is_not_healthy_unless_policy_ignores_it() -> None:
    topology = MACHINES["hgx_h100"]()
    node = state_of(record(topology=topology, held={}, observed="2026-11-01T00:00:00Z"), NOW, POLICY)

    assert _raw("health", node, profile(1)) == 0.0
    assert _raw("health", node, profile(1), Policy(stale=Handling.IGNORE)) == 1.0


@settings(deadline=None, max_examples=150)
@given(topologies(), st.integers(0, 6), st.sampled_from(({}, {"island": "preferred"}, {"numa": "ignore"})))
def test_every_score_is_between_0_and_10(topology: NodeTopology, gpus: int, wishes: dict[str, str]) -> None:
    node = state_of(record(topology=topology), NOW, POLICY)
    asked = profile(gpus, **wishes)
    assume(rejection_reason(asked, node, POLICY) is None)
    found = score_state(asked, node, POLICY)

    assert 0 <= found.points <= 10
    assert all(0 <= part.raw <= 1 for part in found.parts)
    assert found.points == pytest.approx(sum(part.share for part in found.parts))


@settings(deadline=None, max_examples=40)
@given(
    topologies(),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {},
        optional={
            "island": st.sampled_from(["required", "preferred", "ignore"]),
            "numa": st.sampled_from(["required", "preferred", "ignore"]),
            "isolation": st.sampled_from(["required", "ignore"]),
            "interconnect": st.just("nvlink"),
            "min_vram": st.just("1Gi"),
            "min_bandwidth": st.just("1"),
            "workload": st.sampled_from(["training", "inference"]),
        },
    ),
)
def test_constraints_that_only_filter_do_not_change_the_score(
    topology: NodeTopology, gpus: int, wishes: dict[str, str]
) -> None:
    node, asked = state_of(record("a", topology, held={}), NOW, POLICY), profile(gpus, **wishes)

    assert score_state(scoring_key(asked), node, POLICY) == score_state(asked, node, POLICY)


def test_node_that_does_not_fit_still_has_a_score() -> None:
    """Explanations score nodes that the filters reject."""
    full = _node("hgx_h100", *range(8))

    parts = {part.factor: part.raw for part in score_state(profile(2), full, POLICY).parts}

    assert [parts[factor] for factor in ("bandwidth", "leftover", "numa", "nic")] == [0.0] * 4
