"""Nodes that nothing but labels describes: the labels decide a required shape wherever they leave no doubt."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.explain.explain import explain
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile
from tests.scheduler_core.builders import NOW, node, occupant, profile, record, request

ONE_ISLAND = {
    "gputopo.io/gpus": "8",
    "gputopo.io/islands": "8",
    "gputopo.io/interconnect": "nvswitch",
    "gputopo.io/island-bandwidth": "900",
    "gputopo.io/numa-layout": "4-4",
    "gputopo.io/vram-mib": "81559",
}
PAIRS = {"gputopo.io/gpus": "8", "gputopo.io/islands": "2-2-2-2", "gputopo.io/interconnect": "nvlink"}
BRIDGE = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu-topology": "nvlink", "gputopo.io/numa-layout": "2"}
GFD = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
PCIE = {**GFD, "nvidia.com/gpu-topology": "pcie"}


def _node(labels: dict[str, str], *, allocatable: int = 8, busy: int = 0) -> NodeState:
    pods = [occupant("busy", busy)] if busy else []
    return state_of(record(labels=labels, pods=pods, allocatable={"nvidia.com/gpu": allocatable}), NOW, Policy())


def _table(records: list[NodeRecord]) -> ClusterSnapshot:
    return with_records(ClusterSnapshot(), records, NOW, Policy())


@pytest.mark.parametrize(
    ("state", "asked", "reason"),
    [
        pytest.param(_node(ONE_ISLAND), profile(4, island="required"), None, id="one island holds any four"),
        pytest.param(_node(ONE_ISLAND, busy=4), profile(4, island="required"), None, id="beside another pod"),
        pytest.param(_node(ONE_ISLAND), profile(4, interconnect="nvswitch"), None, id="one switch"),
        pytest.param(_node(ONE_ISLAND), profile(8, min_bandwidth="900"), None, id="its bandwidth"),
        pytest.param(_node(ONE_ISLAND), profile(8, min_bandwidth="901"), Reason.BANDWIDTH, id="more than it has"),
        pytest.param(_node(ONE_ISLAND), profile(8, numa="required"), Reason.NUMA, id="two NUMA nodes for all"),
        pytest.param(_node(ONE_ISLAND), profile(4, numa="required"), Reason.UNKNOWN_TOPOLOGY, id="which four is open"),
        pytest.param(_node(ONE_ISLAND), profile(8, min_vram="79Gi"), None, id="the smallest memory suffices"),
        pytest.param(_node(ONE_ISLAND), profile(8, nic="required"), Reason.UNKNOWN_TOPOLOGY, id="no label for NICs"),
        pytest.param(_node(PAIRS), profile(2, island="required"), Reason.UNKNOWN_TOPOLOGY, id="which pair is open"),
        pytest.param(_node(PAIRS), profile(4, island="required"), Reason.ISLAND, id="no pair holds four"),
        pytest.param(
            _node(BRIDGE, allocatable=2), profile(2, island="required", interconnect="nvlink"), None, id="an idle pair"
        ),
        pytest.param(_node(BRIDGE, allocatable=2), profile(2, numa="required"), None, id="one NUMA node"),
        pytest.param(
            _node(GFD), profile(8, island="required"), Reason.UNKNOWN_TOPOLOGY, id="GFD says nothing of links"
        ),
        pytest.param(_node(GFD), profile(8, model="H100", min_vram="79Gi"), None, id="GFD names product and memory"),
        pytest.param(_node(PCIE), profile(2, island="required"), Reason.ISLAND, id="no NVLink"),
        pytest.param(_node(PCIE), profile(2, interconnect="nvlink"), Reason.INTERCONNECT, id="no NVLink for the ring"),
        pytest.param(
            _node({**GFD, "gputopo.io/largest-island": "8"}),
            profile(8, island="required"),
            None,
            id="by largest island",
        ),
        pytest.param(
            _node({**ONE_ISLAND, "gputopo.io/islands": "16"}),
            profile(8, island="required"),
            Reason.UNKNOWN_TOPOLOGY,
            id="a label of other hardware",
        ),
        pytest.param(
            _node({**ONE_ISLAND, "gputopo.io/interconnect": "pcie"}),
            profile(8, island="required"),
            Reason.UNKNOWN_TOPOLOGY,
            id="labels that contradict each other",
        ),
        pytest.param(
            _node(ONE_ISLAND, allocatable=16),
            profile(8, island="required"),
            Reason.UNKNOWN_TOPOLOGY,
            id="more devices than GPUs: shares",
        ),
        pytest.param(
            _node({**ONE_ISLAND, "gputopo.io/topology-manager": "single-numa-node"}),
            profile(8, island="required"),
            Reason.UNKNOWN_TOPOLOGY,
            id="the kubelet may reject what spans NUMA nodes",
        ),
    ],
)
def test_labels_decide_where_they_are_unambiguous(state: NodeState, asked: PodProfile, reason: Reason | None) -> None:
    assert rejection_reason(asked, state, Policy()) is reason


def test_labels_beside_a_damaged_annotation_decide_nothing() -> None:
    healthy = node(labels=ONE_ISLAND, allocatable={"nvidia.com/gpu": 8})
    metadata = msgspec.structs.replace(healthy.metadata, annotations={"gputopo.io/topology": "{"})
    damaged = NodeRecord("n", parse_node(msgspec.structs.replace(healthy, metadata=metadata)))

    found = rejection_reason(profile(8, island="required"), state_of(damaged, NOW, Policy()), Policy())

    assert found is Reason.UNKNOWN_TOPOLOGY


def test_why_names_the_labels_that_decided_and_those_that_are_missing() -> None:
    gpus = {"nvidia.com/gpu": 8}
    nodes = [record("labelled", labels=ONE_ISLAND, allocatable=gpus), record("gfd", labels=GFD, allocatable=gpus)]
    table = _table(nodes)

    found = explain(request(8, island="required"), table, None, Policy(), NOW)

    assert found.suited == ("labelled",)
    stated = (
        "gputopo.io/islands=8, gputopo.io/numa-layout=4-4, gputopo.io/interconnect=nvswitch, "
        "gputopo.io/island-bandwidth=900, gputopo.io/vram-mib=81559"
    )
    assert f"labelled: no agent describes these GPUs; the labels suffice: {stated}" in found.notes
    assert (
        "gfd: no agent describes these GPUs, and no label decides this shape; missing: gputopo.io/islands "
        "(gputopo labels)"
    ) in found.notes


@pytest.mark.parametrize("stated", ["gputopo.io/interconnect", "nvidia.com/gpu-topology", "gpu-interconnect"])
def test_why_names_no_label_as_missing_that_another_key_states(stated: str) -> None:
    table = _table([record("n", labels={**GFD, stated: "nvlink"}, allocatable={"nvidia.com/gpu": 8})])

    found = explain(request(2, interconnect="nvlink"), table, None, Policy(), NOW)

    (note,) = (each for each in found.notes if "leave this shape open" in each or "no label decides" in each)
    assert note.endswith("; missing: gputopo.io/islands (gputopo labels)")


def test_a_node_of_labels_alone_is_scored_by_its_interconnect() -> None:
    gpus = {"nvidia.com/gpu": 8}
    nodes = [record("switch", labels=ONE_ISLAND, allocatable=gpus), record("pcie", labels=PCIE, allocatable=gpus)]

    scores = evaluate(request(8), _table(nodes), ["pcie", "switch"], Policy()).scores

    assert scores["switch"].points > scores["pcie"].points


def test_why_names_a_label_of_another_tool_that_it_ignores() -> None:
    odd = record("odd", labels={**GFD, "gpu-interconnect": "NV18"}, allocatable={"nvidia.com/gpu": 8})

    found = explain(request(1), _table([odd]), None, Policy(), NOW)

    expected = "nvswitch, nvlink, pcie or none"
    assert f"odd: the label gpu-interconnect=NV18 is ignored: expected {expected}" in found.notes


def test_why_names_the_largest_island_that_labels_state() -> None:
    """These nodes have NVLink: the advice said that they have none."""
    labels = {"gputopo.io/islands": "4-4", "gputopo.io/interconnect": "nvlink"}
    table = _table([record("n", labels=labels, allocatable={"nvidia.com/gpu": 8})])

    (found,) = explain(request(5, island="required"), table, None, Policy(), NOW).refused

    assert found.means == "None of these nodes has an NVLink island of 5 GPUs, free or not: the largest has 4."


def test_why_names_the_numa_label_of_gpu_feature_discovery_that_decided() -> None:
    labels = {**GFD, "nvidia.com/gpu.numa": "0", "nvidia.com/gpu-topology": "pcie"}
    table = _table([record("n", labels=labels, allocatable={"nvidia.com/gpu": 8})])

    found = explain(request(4, numa="required"), table, None, Policy(), NOW)

    assert found.suited == ("n",)
    (note,) = (each for each in found.notes if "the labels suffice" in each)
    assert note.endswith("nvidia.com/gpu.numa=0")
