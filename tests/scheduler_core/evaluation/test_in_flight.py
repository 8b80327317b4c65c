"""Nodes to which in-flight pods may come."""

from __future__ import annotations

from itertools import combinations
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gputopo.crd.nodegpus import KubeletFacts
from gputopo.labels.reasons import Reason
from gputopo.model import NodeTopology
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, state_if
from scheduler_core.evaluation.evaluate import Evaluator, evaluator_for
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.score import Score
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import ContainerStep
from scheduler_core.request.pod_request import PodProfile
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record

POLICY = Policy()
PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
SINGLES = [occupant(f"single-{at}", 1) for at in range(4)]
TWO = [occupant(f"two-{at}", 2) for at in range(4)]
PAIR = profile(2, island="required")


def table(*pods: Occupant) -> ClusterSnapshot:
    return snapshot_of([record(name, PAIRS, held={}, pods=pods) for name in ("a", "b", "c")], NOW, POLICY)


def is_firm(asked: PodProfile, known: ClusterSnapshot, *doubtful: Occupant) -> bool:
    held = [AssumedPod(pod, frozenset({"a", "b"}), inf) for pod in doubtful]
    return fits_with_all(asked, known, "a", held, evaluator_for(asked, POLICY)) is True


@pytest.mark.parametrize(
    ("asked", "doubtful", "expected"),
    [
        pytest.param(PAIR, [], True, id="nobody is in doubt"),
        pytest.param(PAIR, SINGLES[:1], True, id="one single GPU leaves a pair"),
        pytest.param(PAIR, SINGLES[:2], False, id="two of them may not"),
        pytest.param(PAIR, TWO[:1], True, id="the device plugin takes a pair where there is one"),
        pytest.param(PAIR, TWO[:2], True, id="only one of them can come: kube-scheduler counts the GPUs"),
        pytest.param(PAIR, SINGLES[:4], False, id="two of four may come, one to each pair"),
        pytest.param(profile(1), SINGLES[:4], True, id="no shape is required"),
    ],
)
def test_required_shape_holds_with_every_subset(asked: PodProfile, doubtful: list[Occupant], expected: bool) -> None:
    assert is_firm(asked, table(), *doubtful) is expected


EIGHT = MACHINES["hgx_h100"]()  # one island
SOFT = [occupant(f"soft-{at}", 1 + at % 2, island="preferred", min_vram=f"{at}Gi") for at in range(8)]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_many_pods_with_soft_wishes_do_not_keep_a_required_island_away(gpus: int) -> None:
    known = snapshot_of([record(name, EIGHT, held={}) for name in ("a", "b")], NOW, POLICY)

    assert is_firm(profile(gpus, island="required"), known, *SOFT)


def test_of_more_subsets_than_can_be_tried_none_is_assumed_to_fit() -> None:
    known = snapshot_of([record(name, EIGHT, held={}) for name in ("a", "b")], NOW, POLICY)
    different = [occupant(f"p-{at}", 1, isolation="required", min_vram=f"{at + 1}Gi") for at in range(6)]

    assert is_firm(profile(2, nic="required"), known, *different[:5])
    assert not is_firm(profile(2, nic="required"), known, *different)


LAYOUTS = [(1,), (2,), (1, 1), (3,), (2, 1), (1, 2), (1, 1, 1), (4,)]  # GPUs of each container


@pytest.mark.parametrize("machine", ["hgx_h100", "dgx2"])
@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_pods_of_many_layouts_do_not_keep_a_required_island_away(machine: str, policy: str) -> None:
    known = snapshot_of(_with_kubelet(policy, MACHINES[machine]()), NOW, POLICY)
    mixed = [_with_layout(f"p-{at}", each) for at, each in enumerate(LAYOUTS)]

    assert is_firm(profile(2, island="required"), known, *mixed)
    assert not is_firm(profile(2, numa="required"), known, *mixed)


def _with_layout(name: str, gpus: tuple[int, ...]) -> Occupant:
    pod = occupant(name, 1)
    request = pod.profile.device_request._replace(
        steps_by_resource=(("nvidia.com/gpu", tuple(map(ContainerStep, gpus))),)
    )
    return pod._replace(profile=pod.profile._replace(device_request=request))


def _with_kubelet(policy: str, topology: NodeTopology) -> list[NodeRecord]:
    found = []
    for name in ("a", "b"):
        node = record(name, topology, held={})
        assert node.gpus is not None
        facts = msgspec.structs.replace(node.gpus, kubelet=KubeletFacts(policy, "container"))
        found.append(msgspec.structs.replace(node, gpus=facts))
    return found


def test_pods_of_all_workloads_do_not_keep_a_required_island_away() -> None:
    known = snapshot_of([record(name, EIGHT, held={}) for name in ("a", "b")], NOW, POLICY)
    workloads = ("training", "inference", "batch")
    mixed = [occupant(f"{kind}-{at}", 1, workload=kind) for kind in workloads for at in range(6)]

    assert is_firm(profile(2, island="required"), known, *mixed)


@pytest.mark.parametrize(("kind", "fits"), [("inference", False), ("batch", True)])
def test_pods_from_which_the_pod_must_be_isolated_keep_it_away(kind: str, fits: bool) -> None:
    known = snapshot_of([record(name, EIGHT, held={}) for name in ("a", "b")], NOW, POLICY)
    asked = profile(6, workload="training", isolation="required")

    assert is_firm(asked, known, occupant("plain", 2), occupant(kind, 2, workload=kind)) is fits  # one of them may come


@pytest.mark.parametrize(("policy", "fits"), [("none", True), ("restricted", False)])
def test_the_memory_of_pods_matters_only_where_the_kubelet_aligns_it(policy: str, fits: bool) -> None:
    pods = [_with_memory(occupant(f"p-{at}", 1), at + 1) for at in range(8)]

    assert is_firm(profile(2, island="required"), snapshot_of(_with_kubelet(policy, EIGHT), NOW, POLICY), *pods) is fits


def _with_memory(pod: Occupant, memory: int) -> Occupant:
    request = pod.profile.device_request._replace(aligned_steps=(ContainerStep(1, memory=memory),))
    return pod._replace(profile=pod.profile._replace(device_request=request))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_a_node_fits_exactly_with_all_subsets_that_kube_scheduler_may_bind_there(seed: int) -> None:
    random = Random(seed)
    topology = MACHINES[random.choice(("a100_bridged", "hgx_h100", "v100_ring", "dgx1", "dgx_a100"))]()
    coming = [occupant(f"p-{at}", random.choice((1, 1, 2, 4))) for at in range(random.randint(1, 4))]
    shaped: dict[str, Any] = {"island": "required"} if random.random() < 0.5 else {}
    there = [occupant("there", random.choice((1, 2)), **shaped)] if random.random() < 0.5 else []
    policy = random.choice(("none", "best-effort", "single-numa-node"))
    nodes = [msgspec.structs.replace(each, pods=tuple(there)) for each in _with_kubelet(policy, topology)]
    known = snapshot_of(nodes, NOW, POLICY)
    wishes = [{"island": "required"}, {"numa": "required"}, *([{}] if there and shaped else [])]
    asked = profile(random.choice((2, 3, 4)), **random.choice(wishes))
    evaluator = evaluator_for(asked, POLICY)
    assume(isinstance(evaluator(known.states["a"]), Score))
    total = len(topology.gpus) - asked.gpus - sum(pod.profile.gpus for pod in there)
    subsets = [
        pods
        for size in range(1, len(coming) + 1)
        for pods in combinations(coming, size)
        if sum(pod.profile.gpus for pod in pods) <= total
    ]

    expected = all(isinstance(evaluator(state_if(known, "a", (*there, *pods))), Score) for pods in subsets)

    assert is_firm(asked, known, *coming) is expected


def test_only_the_answered_nodes_of_in_flight_pods_are_affected() -> None:
    held = [AssumedPod(pod, frozenset({"a", "b"}), inf) for pod in SINGLES]

    assert fits_with_all(PAIR, table(), "c", held, evaluator_for(PAIR, POLICY))


def test_constraint_of_another_pod_is_kept() -> None:
    promised = table(occupant("promised", 2, island="required"))
    admitted = table(occupant("promised", 2, admitted=True, island="required"))

    assert is_firm(profile(1), promised)
    assert not is_firm(profile(1), promised, SINGLES[0])
    assert is_firm(profile(1), admitted, SINGLES[0])


def test_a_check_can_be_ended_and_goes_on_with_the_kept_results() -> None:
    held = [AssumedPod(pod, frozenset({"a", "b"}), inf) for pod in (SINGLES[0], *TWO[:1])]
    evaluated, known = list[NodeState](), table()

    class Recording(Evaluator):
        def __call__(self, state: NodeState) -> Reason | Score:
            evaluated.append(state)
            return super().__call__(state)

    def check(*may_continue: bool) -> bool | None:
        return fits_with_all(PAIR, known, "a", held, Recording(PAIR, POLICY), iter(may_continue).__next__)

    assert check(False) is None
    assert check(True, False) is None
    assert evaluated == []
    assert check(True, True, False) is None
    assert len(evaluated) == 1
    assert check(True, True, True) is True
