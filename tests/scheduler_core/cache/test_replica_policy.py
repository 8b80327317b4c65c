"""The policy of a device plugin that shares GPUs, learned from the kubelet's reports."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from gputopo.crd.nodegpus import KubeletFacts
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node_record import NodeRecord, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_state import state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, kubelet_report, occupant, profile, record

PAIRS = MACHINES["a100_bridged"]()  # four GPUs of 80 GiB
DISTRIBUTED, PACKED, UNKNOWN = ReplicaPolicy.DISTRIBUTED, ReplicaPolicy.PACKED, ReplicaPolicy.UNKNOWN
Held = dict[str, list[int]]


def _node(label: str | None = None, replicas: str | None = "2") -> NodeRecord:
    labels = {"nvidia.com/gpu.replicas": replicas, "gputopo.io/sharing": label}
    stated = {key: value for key, value in labels.items() if value is not None}
    return record("n", PAIRS, held={}, labels=stated, allocatable={WHOLE: 8})


def _after(node: NodeRecord, reports: Iterable[Held]) -> NodeRecord:
    for held in reports:
        node = with_gpus(node, kubelet_report(PAIRS, held))
    return node


@pytest.mark.parametrize(
    ("reports", "policy"),
    [
        pytest.param([{"a": [0]}], None, id="on idle GPUs every policy chooses any"),
        pytest.param([{"a": [0]}, {"a": [0], "b": [1]}], DISTRIBUTED, id="the emptier one"),
        pytest.param([{"a": [0]}, {"a": [0], "b": [0]}], PACKED, id="the fuller one"),
        pytest.param([{"a": [0], "b": [1]}], None, id="two at once show nothing"),
        pytest.param([{"a": [0]}, {"b": [1]}], None, id="one came and one left"),
        pytest.param(
            [{"a": [0], "b": [0]}, {"a": [0], "b": [0], "c": [1]}], None, id="one is full, the others are equal"
        ),
        pytest.param(
            [{"a": [0]}, {"a": [0], "b": [1]}, {"a": [0], "b": [1], "c": [1]}], UNKNOWN, id="contradiction: neither"
        ),
        pytest.param(
            [
                {"a": [0]},
                {"a": [0], "b": [0]},
                {"a": [0], "b": [0], "c": [1]},
                {"a": [0], "b": [0], "c": [1], "d": [1]},
            ],
            PACKED,
            id="packed, GPU after GPU",
        ),
    ],
)
def test_a_new_replica_shows_the_policy(reports: list[Held], policy: ReplicaPolicy | None) -> None:
    assert _after(_node(), reports).observed_policy is policy


def test_no_policy_is_inferred_where_the_replicas_of_a_gpu_are_unknown() -> None:
    assert _after(_node(replicas=None), [{"a": [0]}, {"a": [0], "b": [1]}]).observed_policy is None


@pytest.mark.parametrize(
    ("label", "policy"),
    [
        pytest.param(None, PACKED, id="no label: the second of two replicas of GPU 0"),
        pytest.param("1", None, id="the label comes first: GPU 0 was full"),
    ],
)
def test_replicas_that_the_kubelet_reports_suffice(label: str | None, policy: ReplicaPolicy | None) -> None:
    """Without a label the policy was never learned."""
    node = _node(replicas=label)
    for held in ({"a": [0]}, {"a": [0], "b": [0]}):
        report = msgspec.structs.replace(kubelet_report(PAIRS, held), kubelet=KubeletFacts(replicas=2))
        node = with_gpus(node, report)

    assert node.observed_policy is policy


def test_no_policy_is_inferred_while_a_pod_ended_since_the_report() -> None:
    """The pod may have filled the fuller GPU when the new pod was admitted."""
    node = with_pod(_after(_node(), [{"a": [0]}]), occupant("gone", 1, vram="1Gi"))
    node = without_pod(node, "uid-gone")

    assert _after(node, [{"a": [0], "b": [1]}]).observed_policy is None


@pytest.mark.parametrize(
    ("label", "reports", "fits"),
    [
        pytest.param("distributed", [], True, id="known by the label"),
        pytest.param("packed", [], False, id="packed: on the GPU that has 60 GiB"),
        pytest.param(None, [], False, id="unknown: it may be packed"),
        pytest.param(None, [{"z": [1], "y": [0]}, {"z": [1], "y": [0], "x": [0]}], False, id="learned: packed"),
        pytest.param(None, [{"z": [1]}, {"z": [1], "x": [2]}], True, id="learned: distributed"),
        pytest.param("packed", [{"z": [1]}, {"z": [1], "x": [2]}], False, id="the label counts first"),
    ],
)
def test_a_share_goes_beside_a_large_one_only_under_a_known_policy(
    label: str | None, reports: list[Held], *, fits: bool
) -> None:
    node = _after(_node(label), [*reports, {}])
    node = _after(with_pod(node, occupant("a", 1, vram="60Gi")), [{"a": [0]}])

    assert (rejection_reason(profile(1, vram="40Gi"), state_of(node, NOW, Policy()), Policy()) is None) is fits


@pytest.mark.parametrize("share", ["10Gi", "40Gi", "80Gi"])
def test_idle_gpus_take_any_share_under_an_unknown_policy(share: str) -> None:
    assert rejection_reason(profile(1, vram=share), state_of(_node(), NOW, Policy()), Policy()) is None
