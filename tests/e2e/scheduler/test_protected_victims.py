"""kube-scheduler's own preemption does not evict pods that the policy protects."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, gpu_pod, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def use_node(cluster: Cluster, name: str, node: str, priority_class: str, wishes: dict[str, str]) -> None:
    """Run a pod with all GPUs of a node."""
    selector = {"kubernetes.io/hostname": node}
    cluster.create_pod(gpu_pod(name, 8, wishes, nodeSelector=selector, priorityClassName=priority_class))
    started(cluster, name)


@pytest.mark.parametrize(
    ("priority", "wishes"),
    [
        pytest.param(1_000, {"workload": "training"}, id="important training"),
        pytest.param(500, {"workload": "training", "expected-duration": "1h"}, id="training near its end"),
        pytest.param(500, {"workload": "training", "checkpoints": "false"}, id="training without checkpoints"),
        pytest.param(500, {"workload": "training", "preemptible": "never"}, id="an annotation forbids it"),
    ],
)
def test_the_pod_of_the_lowest_priority_is_spared_if_the_policy_protects_it(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    gputopo_scheduler: Extender,
    priority: int,
    wishes: dict[str, str],
) -> None:
    """Without the policy kube-scheduler evicts it: of two nodes it takes the one with the less important victim."""
    for name, value in (("low", priority), ("middle", 1_500), ("high", 2_000)):
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "value": value})
    fleet.add(*(NodeSpec(name=name, shape=islands_4_4()) for name in ("gpu-0", "gpu-1")))
    agents_of()
    use_node(cluster, "protected", "gpu-0", "low", wishes)
    use_node(cluster, "other", "gpu-1", "middle", {"workload": "batch"})

    cluster.create_pod(gpu_pod("urgent", 8, {}, priorityClassName="high"))

    assert started(cluster, "urgent")["spec"]["nodeName"] == "gpu-1"
    left = {each["metadata"]["name"] for each in cluster.api.items(cluster.pods())}
    assert left == {"protected", "urgent"}
    assert gputopo_scheduler.count("gputopo_preemption_nodes_total", outcome="protected") >= 1
