"""The classic walk-through: three nodes that somebody labelled by hand, and no agent anywhere."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.labels import encode_topology, keys
from gputopo.labels.reasons import Reason
from tests.api_objects import gpu_node
from tests.e2e.cluster import Cluster
from tests.e2e.scheduler.running import Extender, gpu_pod, placed, refused
from tests.machines import MACHINES

pytestmark = pytest.mark.e2e
A100, V100 = "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-16GB"
NODES = {"a100-near": (A100, "0"), "a100-far": (A100, "1"), "v100": (V100, "0")}


@pytest.fixture
def labelled(cluster: Cluster) -> Cluster:
    """Nodes of one GPU that say their product and their NUMA node, and nothing else."""
    for name, (product, numa) in NODES.items():
        labels = {keys.NVIDIA_PRODUCT.key: product, keys.NVIDIA_NUMA.key: numa}
        cluster.api.create("/api/v1/nodes", gpu_node(name, 1, labels))
    return cluster


def on_a100(cluster: Cluster, name: str) -> None:
    """Ask for one A100, by the label."""
    wanted = gpu_pod(name, 1)
    wanted["metadata"]["labels"] = {keys.POD_GPU_MODEL.key: A100}
    cluster.create_pod(wanted)


def test_the_pod_lands_on_the_a100_of_numa_node_0(labelled: Cluster, gputopo_scheduler: Extender) -> None:
    on_a100(labelled, "first")

    assert placed(labelled, "first")["spec"]["nodeName"] == "a100-near"
    assert gputopo_scheduler.filter_calls == 1
    explained = msgspec.json.decode(gputopo_scheduler.text(f"/explain/{labelled.namespace}/first"))
    assert {each["text"]: each["nodes"] for each in explained["refused"]} == {Reason.MODEL.value: ["v100"]}


@pytest.mark.usefixtures("gputopo_scheduler")
def test_the_next_one_takes_what_is_left_and_the_last_is_told_why_not_the_v100(labelled: Cluster) -> None:
    for name, node in (("first", "a100-near"), ("second", "a100-far")):
        on_a100(labelled, name)
        assert placed(labelled, name)["spec"]["nodeName"] == node
    on_a100(labelled, "third")

    said = refused(labelled, "third")

    assert said.startswith(f"0/3 nodes are available: 1 {Reason.MODEL.value}, 2 Insufficient nvidia.com/gpu. "), said


@pytest.mark.usefixtures("gputopo_scheduler")
def test_unambiguous_labels_place_a_pod_that_requires_an_island(cluster: Cluster) -> None:
    """Nodes labelled as by ``gputopo labels``, no agent: one NVSwitch island, and four bridged pairs."""
    for name, machine in (("switch", "hgx_h100"), ("pairs", "a100_mesh")):
        facts = encode_topology(MACHINES[machine]())
        gpus = int(facts.labels[keys.GPUS.key])
        cluster.api.create("/api/v1/nodes", gpu_node(name, gpus, facts.labels | facts.mirrors))
    for name in ("first", "second"):
        wanted = gpu_pod(name, 4)
        wanted["metadata"]["annotations"] = {keys.POD_ISLAND.key: "required"}
        cluster.create_pod(wanted)

        assert placed(cluster, name)["spec"]["nodeName"] == "switch"
