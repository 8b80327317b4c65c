"""A tenant writes the planner's annotation and a pin into its own pods: they reserve no GPUs.

Where no admission policy is installed, too: what a pod says of itself does not count.
"""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import install_planner_policies
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, create_job, gang, job, node_of, of_job, wait_until_whole
from tests.e2e.gangs.running import reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, gpu_pod, placed
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
NODES = tuple(f"gpu-{number}" for number in range(4))
FORGED: dict[str, Any] = {
    "held by a gate of its own": {"schedulingGates": [{"name": "example.com/never"}]},
    "of a scheduler that does not exist": {"schedulerName": "nobody"},
}
forged = pytest.mark.parametrize("how", FORGED.values(), ids=FORGED.keys())


def forge(cluster: Cluster, **spec: Any) -> None:
    """Create four pods that claim all GPUs of the four nodes and never start."""
    cluster.create_namespace("foreign")
    for node in NODES:
        made = pod(f"claims-{node}", 8, **(spec | {"affinity": {"nodeAffinity": pinned(node)}}))
        made["metadata"] |= {
            "namespace": "foreign",
            "annotations": {keys.POD_RESERVATION.key: "llm-7-4f2a9c", keys.POD_GANG.key: "llm-7"},
        }
        cluster.create_pod(made)


def pinned(node: str) -> Object:
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [pin]}]}}


@forged
def test_a_gang_gets_the_nodes_that_forged_pods_claim(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    scheduler: StartScheduler,
    planner: StartPlanner,
    how: dict[str, Any],
) -> None:
    assert gpu_nodes
    agents_of()
    scheduler()
    forge(cluster, **how)
    planner()

    create(cluster, *gang("train", Asked(4, 8, scheduler="default-scheduler")))

    pods = wait_until_whole(cluster, "train", 4)
    assert sorted(map(str, map(node_of, pods))) == list(NODES)
    assert [each["spec"]["gang"] for each in reserved(cluster)] == ["train"]
    assert cluster.api.items("/apis/gputopo.io/v1alpha1/namespaces/foreign/placementreservations") == []


@forged
def test_the_extender_allows_the_nodes_that_forged_pods_claim(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    how: dict[str, Any],
) -> None:
    assert gpu_nodes
    assert served is None
    agents_of()
    forge(cluster, **how)
    assert gputopo_scheduler.ready

    for number in range(4):
        cluster.create_pod(gpu_pod(f"mine-{number}", 8))

    assert sorted(placed(cluster, f"mine-{number}")["spec"]["nodeName"] for number in range(4)) == list(NODES)


@pytest.mark.usefixtures("controller_manager")
def test_a_job_with_the_annotation_in_its_template_creates_no_pods(cluster: Cluster) -> None:
    """The Job controller may create pods in every namespace, from any user's template."""
    install_planner_policies(cluster)
    wishes = {keys.POD_RESERVATION.key: "llm-7-4f2a9c"}

    create_job(cluster, job("forged", Asked(2, 8, wishes, "default-scheduler")))

    messages = wait_for(lambda: [str(each["message"]) for each in failures(cluster)], "the controller to be refused")
    assert "only gputopo's planner sets, changes or removes the annotations" in messages[0]
    assert of_job(cluster, "forged") == []


def failures(cluster: Cluster) -> list[Object]:
    events = cluster.api.items(f"/api/v1/namespaces/{cluster.namespace}/events")
    return [each for each in events if each["reason"] == "FailedCreate"]
