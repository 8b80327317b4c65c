"""The kubelet's Topology Manager: its policy is known from the kubelet's configuration file, without a label."""

from __future__ import annotations

import pytest

from gputopo.labels.reasons import Reason
from tests.api_objects import pod
from tests.e2e.cluster import Cluster
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, refused, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4
from tests.simulated_node.topology_manager import NumaPolicy

pytestmark = pytest.mark.e2e
NODE = "gpu-0"


@pytest.fixture
def one_free_on_each_numa_node(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, request: pytest.FixtureRequest
) -> None:
    """One node with this policy, on which two pods hold three GPUs each."""
    fleet.add(NodeSpec(name=NODE, shape=islands_4_4(), numa_policy=request.param))
    for name in ("holder-0", "holder-1"):
        cluster.create_pod(pod(name, 3, nodeName=NODE))
        started(cluster, name)
    agents_of()


@pytest.mark.parametrize(
    "one_free_on_each_numa_node", [NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE], indirect=True
)
@pytest.mark.usefixtures("one_free_on_each_numa_node", "gputopo_scheduler")
def test_a_pod_that_the_kubelet_would_reject_is_not_bound(cluster: Cluster) -> None:
    """Bound, it would fail with TopologyAffinityError: a NUMA node has the capacity, and only one free GPU."""
    cluster.create_pod(gpu_pod("pair", 2, {}))

    assert Reason.NUMA.value in refused(cluster, "pair")
    assert "nodeName" not in cluster.pod("pair")["spec"]


@pytest.mark.parametrize("one_free_on_each_numa_node", [NumaPolicy.BEST_EFFORT], indirect=True)
@pytest.mark.usefixtures("one_free_on_each_numa_node", "gputopo_scheduler")
def test_best_effort_may_give_the_pair_across_numa_nodes_and_no_island_is_predicted(
    cluster: Cluster, fleet: Fleet
) -> None:
    cluster.create_pod(gpu_pod("together", 2, {"island": "required"}))
    assert Reason.ISLAND.value in refused(cluster, "together")

    cluster.create_pod(gpu_pod("pair", 2, {}))
    assert {gpu // 4 for gpu in fleet.gpus_of(started(cluster, "pair"))} == {0, 1}
